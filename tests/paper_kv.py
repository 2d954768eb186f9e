"""KV on paper: instead of keys and values, each slot of a block keeps the tokens it stands for."""

from __future__ import annotations

from engine.kv.block_pool import BlockPool
from engine.kv.prefix_digest import Chain
from engine.types.sequence import Sequence, Span


class PaperKv:
    """Checks what a step reads and where it writes."""

    def __init__(self, pool: BlockPool, block_size: int, identity: str) -> None:
        self._pool = pool
        self._size = block_size
        self._identity = identity
        self._slots: dict[tuple[int, int], tuple[str, tuple[int, ...]]] = {}

    def compute(self, span: Span) -> None:
        """One span of a step: all KV before it must be its own, and it writes into no other's."""
        sequence = span.sequence
        for place in range(span.start):
            assert self._slots[self._slot(sequence, place)] == self._meaning(sequence, place)
        self.receive(sequence, span.start, span.start + span.count)

    def receive(self, sequence: Sequence, start: int, stop: int) -> None:
        """KV of these tokens is written."""
        for place in range(start, stop):
            block, _ = slot = self._slot(sequence, place)
            assert self._pool.digest(block) is None, "a named block is written"
            self._slots[slot] = self._meaning(sequence, place)

    def check_names(self) -> None:
        """The name of every block is that of the tokens in it."""
        for block in range(self._pool.total):
            name = self._pool.digest(block)
            if name is not None:
                tenant, tokens = self._slots[block, self._size - 1]
                chain = Chain(tenant, self._identity, self._size)
                chain.follow(tokens, len(tokens))
                assert chain.digests[-1] == name

    def _slot(self, sequence: Sequence, place: int) -> tuple[int, int]:
        return sequence.blocks[place // self._size], place % self._size

    def _meaning(self, sequence: Sequence, place: int) -> tuple[str, tuple[int, ...]]:
        return sequence.tenant, tuple(sequence.tokens[: place + 1])
