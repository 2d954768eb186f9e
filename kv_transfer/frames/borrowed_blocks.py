"""Borrowed blocks: a receiver on the sender's host copies KV out of the sender's own blocks.

The sender's cache is in a shared-memory segment that the receiver maps. An offer names the blocks,
and a word of the segment's header that holds a number. The sender clears that word before it gives
the blocks up. A receiver that still finds the number after its copy has copied valid KV.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from engine.kv.cache import KvCache
from engine.kv.memory import block_bytes, stacks_in
from engine.kv.shared_segments import WORDS, segment_of
from kv_transfer.errors import ChannelBroken, Withdrawn
from kv_transfer.transports.mapped_memory import MappedExtent, MappedMemory


@dataclass(frozen=True, slots=True)
class BorrowedBlocks:
    """A transfer's blocks in the sender's cache, valid while header word `word` holds `number`."""

    word: int
    number: int
    blocks: tuple[int, ...]


class BlockLender:
    """Lends blocks of a cache that is in shared memory and has all its layers in pairs."""

    def __init__(self, cache: KvCache) -> None:
        found = segment_of(cache.memory)
        self._cache = cache
        self._segment = found[0] if found else None
        self._free = list(range(WORDS))
        self._number = 0

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

    def lend(self, blocks: Sequence[int]) -> BorrowedBlocks | None:
        """Lend those blocks until `end`; None if the cache cannot lend or no word is free."""
        if self._segment is None or not self._free or not self._cache.in_pairs:
            return None
        self._number += 1
        borrowed = BorrowedBlocks(self._free.pop(), self._number, tuple(blocks))
        self._segment.write_word(borrowed.word, borrowed.number)
        return borrowed

    def end(self, borrowed: BorrowedBlocks) -> None:
        """Make every later copy of these blocks invalid; called once for each `lend`."""
        assert self._segment is not None
        self._segment.write_word(borrowed.word, 0)
        self._free.append(borrowed.word)


class BlockBorrower:
    """Copies out of a sender's cache of `blocks` blocks; ChannelBroken if it cannot be mapped."""

    def __init__(self, cache: KvCache, extent: MappedExtent, blocks: int) -> None:
        size = (blocks + 1) * block_bytes(cache.layout)
        if extent.size != size:
            raise ChannelBroken(f"{blocks} blocks in {extent.size} bytes")
        self._cache = cache
        self._blocks = blocks
        self._mapped = MappedMemory(extent)
        self._stacks = stacks_in(self._mapped.view(extent), cache.layout, blocks + 1)

    def takes(self, borrowed: BorrowedBlocks, blocks: int) -> bool:
        """Whether these are `blocks` blocks that the borrower can copy."""
        inside = max(borrowed.blocks, default=self._blocks) < self._blocks and borrowed.word < WORDS
        return inside and len(borrowed.blocks) == blocks and self._cache.in_pairs

    def copy(
        self, borrowed: BorrowedBlocks, blocks: Sequence[int], positions: range, layers: range
    ) -> None:
        """Copy these positions of the borrowed block list into the same positions of `blocks`."""
        here = slice(positions.start, positions.stop)
        self._cache.copy_pairs(self._stacks, borrowed.blocks[here], blocks[here], layers)

    def check(self, borrowed: BorrowedBlocks) -> None:
        """Raise Withdrawn if the sender has taken the blocks back: the copies are then invalid."""
        if self._mapped.word(borrowed.word) != borrowed.number:
            raise Withdrawn("its sender has taken the blocks back")
