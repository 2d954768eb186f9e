"""KV on loan: a receiver on the sender's host copies it out of the sender's own blocks.

The sender's cache lies in a segment that the receiver maps. An offer names the blocks and a word in
the segment's header with a number in it, which the sender clears before it gives the blocks up. So
who has copied and still finds the number there has copied what was lent.
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
    """A transfer's blocks in the sender's cache, lent while that word holds that number."""

    word: int
    number: int
    blocks: tuple[int, ...]


class BlockLender:
    """Lends blocks of a cache; it can only where that lies in shared memory and all is in pairs."""

    def __init__(self, cache: KvCache) -> None:
        found = segment_of(cache.memory)
        self._cache = cache
        self._segment = found[0] if found else None
        self._free = list(range(WORDS))
        self._number = 0

    def place(self) -> MappedExtent | None:
        """Where another process finds the cache; None where it does not."""
        if self._segment is None:
            return None
        segment, size = self._segment, self._cache.memory.numel()
        pid, identity = os.getpid(), segment.identity
        return MappedExtent(pid, segment.descriptor, identity, segment.generation, 0, size)

    def lend(self, blocks: Sequence[int]) -> BorrowedBlocks | None:
        """Those blocks until `end`; None where it cannot, or too much is lent already."""
        if self._segment is None or not self._free or not self._cache.in_pairs:
            return None
        self._number += 1
        loan = BorrowedBlocks(self._free.pop(), self._number, tuple(blocks))
        self._segment.write_word(loan.word, loan.number)
        return loan

    def end(self, loan: BorrowedBlocks) -> None:
        """What is copied of it from now on is refused; once for each loan."""
        assert self._segment is not None
        self._segment.write_word(loan.word, 0)
        self._free.append(loan.word)


class BlockBorrower:
    """Copies out of a sender's cache, `blocks` in all; ChannelBroken where that cannot be read."""

    def __init__(self, cache: KvCache, place: MappedExtent, blocks: int) -> None:
        size = (blocks + 1) * block_bytes(cache.layout)
        if place.size != size:
            raise ChannelBroken(f"{blocks} blocks in {place.size} bytes")
        self._cache = cache
        self._blocks = blocks
        self._mapped = MappedMemory(place)
        self._stacks = stacks_in(self._mapped.view(place), cache.layout, blocks + 1)

    def takes(self, loan: BorrowedBlocks, blocks: int) -> bool:
        """Whether that loan can be copied as one of so many blocks."""
        inside = max(loan.blocks, default=self._blocks) < self._blocks and loan.word < WORDS
        return inside and len(loan.blocks) == blocks and self._cache.in_pairs

    def copy(
        self, loan: BorrowedBlocks, blocks: Sequence[int], places: range, layers: range
    ) -> None:
        """Copy these places of the loan's block list into the same places of `blocks`."""
        here = slice(places.start, places.stop)
        self._cache.copy_pairs(self._stacks, loan.blocks[here], blocks[here], layers)

    def check(self, loan: BorrowedBlocks) -> None:
        """Withdrawn if it has ended: then nothing that was copied of it is worth anything."""
        if self._mapped.word(loan.word) != loan.number:
            raise Withdrawn("its sender has taken the blocks back")
