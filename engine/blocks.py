"""The book of KV blocks: which are free, who holds the others, and in which phase.

Pure bookkeeping. At every instant free + cached + running + leased + quarantined = total.
Blocks are held by *owners* (one per request on this replica); an owner is in one phase:

    allocate ──▶ running ──lease──▶ leased ──quarantine──▶ quarantined
                    └──────release──────┴─────────release──────┘ ──▶ free

A block's generation rises each time it is given out, so that a late writer can be told.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from engine.errors import TandemError


class OutOfBlocks(TandemError):
    """The pool has fewer free blocks than asked for; nothing was taken."""

    code = "RESOURCE_EXHAUSTED"
    retryable = True


class Phase(Enum):
    """What an owner does with its blocks."""

    RUNNING = "running"
    LEASED = "leased"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Blocks by state; the five states add up to `total`."""

    total: int
    free: int
    cached: int
    running: int
    leased: int
    quarantined: int

    @property
    def used(self) -> int:
        """Blocks that hold a request's KV, in any phase."""
        return self.running + self.leased + self.quarantined


@dataclass(slots=True)
class _Holding:
    phase: Phase
    blocks: list[int]


class BlockPool:
    """`total` blocks, given out by number, with reference counts."""

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError("a pool needs at least one block")
        self.total = total
        # A stack: the block that was freed last is the one most likely still in a cache.
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total
        self._generations = [0] * total
        self._holdings: dict[str, _Holding] = {}

    @property
    def free(self) -> int:
        """How many blocks can be allocated now."""
        return len(self._free)

    def can_allocate(self, count: int) -> bool:
        """Whether `allocate(…, count)` would succeed."""
        return count <= len(self._free)

    def allocate(self, owner: str, count: int) -> list[int]:
        """Give `owner` that many more blocks, running; OutOfBlocks takes none."""
        if count < 0:
            raise ValueError("cannot allocate a negative number of blocks")
        if not self.can_allocate(count):
            raise OutOfBlocks(f"{count} blocks wanted, {self.free} of {self.total} free")
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
            self._generations[block] += 1
        self._holding(owner).blocks.extend(blocks)
        return blocks

    def share(self, owner: str, blocks: Iterable[int]) -> None:
        """Let `owner` hold blocks that somebody holds already."""
        blocks = list(blocks)
        for block in blocks:
            if self._references[block] == 0:
                raise ValueError(f"block {block} is free and cannot be shared")
        for block in blocks:
            self._references[block] += 1
        self._holding(owner).blocks.extend(blocks)

    def release(self, owner: str) -> int:
        """Take back all that `owner` holds; returns how many blocks became free. Idempotent."""
        holding = self._holdings.pop(owner, None)
        if holding is None:
            return 0
        freed = 0
        for block in holding.blocks:
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)
                freed += 1
        return freed

    def set_phase(self, owner: str, phase: Phase) -> None:
        """Move all of the owner's blocks to another phase; KeyError for an unknown owner."""
        self._holdings[owner].phase = phase

    def held(self, owner: str) -> tuple[int, ...]:
        """The owner's blocks in order of allocation, or nothing."""
        holding = self._holdings.get(owner)
        return tuple(holding.blocks) if holding else ()

    def generation(self, block: int) -> int:
        """How often this block was given out."""
        return self._generations[block]

    def owners(self) -> frozenset[str]:
        """Everyone who holds at least one block."""
        return frozenset(name for name, holding in self._holdings.items() if holding.blocks)

    def counts(self) -> BlockCounts:
        """Blocks by state. A shared block counts once, in its owners' most active phase."""
        by_phase: dict[int, Phase] = {}
        for phase in (Phase.QUARANTINED, Phase.LEASED, Phase.RUNNING):
            for holding in self._holdings.values():
                if holding.phase is phase:
                    by_phase.update(dict.fromkeys(holding.blocks, phase))
        tally = dict.fromkeys(Phase, 0)
        for phase in by_phase.values():
            tally[phase] += 1
        return BlockCounts(
            total=self.total,
            free=self.free,
            cached=0,
            running=tally[Phase.RUNNING],
            leased=tally[Phase.LEASED],
            quarantined=tally[Phase.QUARANTINED],
        )

    def orphaned(self, living: Iterable[str]) -> int:
        """How many blocks are held by owners that are not among the living."""
        lost = self.owners() - set(living)
        return len({block for owner in lost for block in self._holdings[owner].blocks})

    def _holding(self, owner: str) -> _Holding:
        return self._holdings.setdefault(owner, _Holding(Phase.RUNNING, []))
