"""Borrowed blocks: a receiver copies KV out of the sender's own blocks.

An offer names the blocks, and a word that holds a number. The sender clears that word before it
gives the blocks up. A receiver that still finds the number after its copy has copied valid KV.

On one host the sender's cache is in a shared-memory segment that the receiver maps, with the words
in its header. `remote_blocks.py` reads cache and words through the channel instead.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from engine.kv.cache import KvCache, KvFormat
from engine.kv.memory import block_bytes, stacks_in
from engine.kv.shared_segments import WORDS, segment_of
from kv_transfer.errors import ChannelBroken, Withdrawn
from kv_transfer.transports.mapped_memory import MappedExtent, MappedMemory


@dataclass(frozen=True, slots=True)
class BorrowedBlocks:
    """A transfer's blocks in the sender's cache, valid while word `word` holds `number`.

    `order` is that of the numbers in the blocks, which are copied as they are.
    """

    word: int
    number: int
    blocks: tuple[int, ...]
    order: KvFormat = "pairs"


class Borrower(Protocol):
    """Copies out of a sender's borrowed blocks."""

    # Whether a copy waits for a network; it then does not keep the copies of other links waiting.
    remote: ClassVar[bool]

    def takes(self, borrowed: BorrowedBlocks, blocks: int) -> bool:
        """Whether these are `blocks` blocks that the borrower can copy."""
        ...

    def copy(
        self, borrowed: BorrowedBlocks, blocks: Sequence[int], positions: range, layers: range
    ) -> None:
        """Copy these positions of the borrowed block list into the same positions of `blocks`."""
        ...

    def check(self, borrowed: BorrowedBlocks) -> None:
        """Raise Withdrawn if the sender has taken the blocks back: the copies are then invalid."""
        ...


def settled_order(cache: KvCache) -> KvFormat | None:
    """The order of all layers of a cache; None if they differ, or may still change."""
    if cache.in_pairs:
        return "pairs"
    # The C++ operations, which change layers to pairs while others run, are for these caches.
    changes = cache.device.type == "cpu" and cache.dtype == torch.bfloat16
    plain = all(kv_format == "plain" for kv_format in cache.formats)
    return "plain" if plain and not changes else None


class BlockLender:
    """Lends blocks of a cache whose layers are all in one order.

    `words` has the words for readers through a channel, int64; one that maps the segment finds them
    in its header.
    """

    def __init__(self, cache: KvCache) -> None:
        found = segment_of(cache.memory)
        self._cache = cache
        self._segment = found[0] if found else None
        self._free = list(range(WORDS))
        self._number = 0
        self.words = torch.zeros(WORDS, dtype=torch.int64)
        self._written = self.words.numpy()

    @property
    def free_words(self) -> int:
        """The number of transfers whose blocks it could lend now."""
        return len(self._free)

    def extent(self) -> MappedExtent | None:
        """The extent of the cache for other processes; None if it is in private memory."""
        if self._segment is None:
            return None
        segment, size = self._segment, self._cache.memory.numel()
        pid, identity = os.getpid(), segment.identity
        return MappedExtent(pid, segment.descriptor, identity, segment.generation, 0, size)

    def lend(self, blocks: Sequence[int], *, remote: bool = False) -> BorrowedBlocks | None:
        """Lend those blocks until `end`; None if the cache cannot lend or no word is free.

        A `remote` receiver reads them through its channel, and maps no segment.
        """
        order = settled_order(self._cache)
        mapped = self._segment is not None and order == "pairs"
        if not self._free or order is None or not (remote or mapped):
            return None
        self._number += 1
        borrowed = BorrowedBlocks(self._free.pop(), self._number, tuple(blocks), order)
        self._write(borrowed.word, borrowed.number)
        return borrowed

    def end(self, borrowed: BorrowedBlocks) -> None:
        """Make every later copy of these blocks invalid; called once for each `lend`."""
        self._write(borrowed.word, 0)
        self._free.append(borrowed.word)

    def _write(self, word: int, number: int) -> None:
        self._written[word] = number
        if self._segment is not None:
            self._segment.write_word(word, number)


class BlockBorrower:
    """Copies out of a sender's cache of `blocks` blocks; ChannelBroken if it cannot be mapped."""

    remote: ClassVar[bool] = False

    def __init__(self, cache: KvCache, extent: MappedExtent, blocks: int) -> None:
        size = (blocks + 1) * block_bytes(cache.layout)
        if extent.size != size:
            raise ChannelBroken(f"{blocks} blocks in {extent.size} bytes")
        self._cache = cache
        self._blocks = blocks
        self._mapped = MappedMemory(extent)
        self._stacks = stacks_in(self._mapped.view(extent), cache.layout, blocks + 1)

    def takes(self, borrowed: BorrowedBlocks, blocks: int) -> bool:
        """See `Borrower.takes`."""
        in_pairs = borrowed.order == "pairs" and self._cache.in_pairs
        return in_pairs and is_within(borrowed, blocks, self._blocks)

    def copy(
        self, borrowed: BorrowedBlocks, blocks: Sequence[int], positions: range, layers: range
    ) -> None:
        """See `Borrower.copy`."""
        here = slice(positions.start, positions.stop)
        self._cache.copy_pairs(self._stacks, borrowed.blocks[here], blocks[here], layers)

    def check(self, borrowed: BorrowedBlocks) -> None:
        """See `Borrower.check`."""
        check_word(borrowed, self._mapped.word(borrowed.word))


def is_within(borrowed: BorrowedBlocks, count: int, blocks: int) -> bool:
    """Whether those are `count` blocks of a cache that has `blocks`, under a word that exists."""
    inside = max(borrowed.blocks, default=blocks) < blocks and borrowed.word < WORDS
    return inside and len(borrowed.blocks) == count


def check_word(borrowed: BorrowedBlocks, found: int) -> None:
    """Raise Withdrawn if the word no longer holds the number of the loan."""
    if found != borrowed.number:
        raise Withdrawn("its sender has taken the blocks back")
