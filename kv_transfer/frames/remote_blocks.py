"""Borrowed blocks that a receiver on any host reads through its channel; see `borrowed_blocks.py`.

The bytes go from the sender's blocks into the receiver's blocks, without frames, staging or a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from engine.kv.cache import KvCache
from engine.kv.layout import KvLayout
from engine.kv.memory import block_bytes
from kv_transfer.errors import ChannelBroken
from kv_transfer.frames.borrowed_blocks import (
    BorrowedBlocks,
    check_word,
    is_within,
    settled_order,
)
from kv_transfer.transports.transport import Offsets, ReadingChannel


class RemoteBorrower:
    """Reads blocks of the sender's cache; each read takes at most `timeout_s`.

    Raises ChannelBroken if the sender's cache cannot have this layout.
    """

    remote: ClassVar[bool] = True

    def __init__(self, cache: KvCache, channel: ReadingChannel, timeout_s: float) -> None:
        # A cache has one block more than it counts, which no sequence owns.
        count, rest = divmod(channel.remote_bytes, block_bytes(cache.layout))
        if rest or count < 2:
            raise ChannelBroken(f"a cache of {channel.remote_bytes} bytes there")
        self._cache = cache
        self._channel = channel
        self._blocks = count - 1
        self._timeout_s = timeout_s

    def takes(self, borrowed: BorrowedBlocks, blocks: int) -> bool:
        """See `Borrower.takes`."""
        alike = borrowed.order == settled_order(self._cache)
        return alike and is_within(borrowed, blocks, self._blocks)

    def copy(
        self, borrowed: BorrowedBlocks, blocks: Sequence[int], positions: range, layers: range
    ) -> None:
        """See `Borrower.copy`; raises TransferFailed and ChannelBroken as `ReadingChannel.read`."""
        chosen = slice(positions.start, positions.stop)
        there, here, sizes = ranges_of(
            self._cache.layout,
            layers,
            (borrowed.blocks[chosen], self._blocks),
            (blocks[chosen], self._cache.blocks),
        )
        self._channel.read(there, here, sizes, self._timeout_s)

    def check(self, borrowed: BorrowedBlocks) -> None:
        """See `Borrower.check`."""
        check_word(borrowed, self._channel.read_word(borrowed.word, self._timeout_s))


def ranges_of(
    layout: KvLayout,
    layers: range,
    source: tuple[Sequence[int], int],
    target: tuple[Sequence[int], int],
) -> tuple[Offsets, Offsets, Offsets]:
    """The ranges of these layers of blocks in two caches: offset there, offset here, and size.

    `source` and `target` are the blocks, and how many blocks their cache has. Neighbouring blocks
    that are neighbours on both sides make one range.
    """
    theirs, mine = np.asarray(source[0], np.int64), np.asarray(target[0], np.int64)
    ends = np.flatnonzero((np.diff(theirs) != 1) | (np.diff(mine) != 1)) + 1
    starts = np.concatenate(([0], ends)).astype(np.int64)
    counts = np.diff(np.append(starts, len(theirs)))
    there: list[Offsets] = []
    here: list[Offsets] = []
    sizes: list[Offsets] = []
    for layer in layers:
        before, half = block_bytes(layout, 0, layer), block_bytes(layout, layer, layer + 1) // 2
        for part in (0, 1):  # keys, values
            for offsets, blocks, count in (
                (there, theirs, source[1] + 1),
                (here, mine, target[1] + 1),
            ):
                offsets.append(count * before + (part * count + blocks[starts]) * half)
            sizes.append(counts * half)
    return np.concatenate(there), np.concatenate(here), np.concatenate(sizes)
