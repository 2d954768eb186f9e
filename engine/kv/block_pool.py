"""The bookkeeping of KV blocks: the free blocks, and the owners of all others. Pure.

At every instant free + cached + running + leased + quarantined = total. An *owner* is a request on
this replica. It holds blocks, and is in one phase:

    allocate ──▶ running ──lease──▶ leased ──quarantine──▶ quarantined
       ▲            └──────release──────┴─────────release──────┘
       │                                 │
       ├────── free ◀──── unnamed ───────┤
       └─ evict ─ cached ◀─── named ─────┘ ──match, share──▶ running

A block is *named* once its KV is computed. Its name is the digest of all tokens up to its end
(`engine/kv/prefix_digest.py`). A named block without a holder is cached, so it can still be found.
When no block is free, the least recently used cached block is evicted. A block's generation rises
each time the pool gives it out, so a late writer can be told from its owner.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from engine.errors import Overloaded


class OutOfBlocks(Overloaded):
    """The pool has fewer free blocks than requested; none was taken."""


class BlockPhase(Enum):
    """The use that an owner has for its blocks."""

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
        """The number of blocks with a request's KV, in any phase."""
        return self.running + self.leased + self.quarantined


@dataclass(slots=True)
class _Holding:
    phase: BlockPhase
    blocks: list[int]
    number: int


# A block's holders in one number, with a digit for each phase: the highest digit is its state.
_HOLDER = {BlockPhase.QUARANTINED: 1, BlockPhase.LEASED: 1 << 20, BlockPhase.RUNNING: 1 << 40}
_FLOORS = tuple(_HOLDER.values())
_UNHELD, _QUARANTINED, _LEASED, _RUNNING = range(4)


class BlockPool:
    """`total` blocks, given out by number, with reference counts and names."""

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError("a pool needs at least one block")
        self.total = total
        self.evictions = 0
        # A stack: the block that was freed last is most likely still in a processor's cache.
        self._free = list(range(total - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._holders = [0] * total
        self._tally = [total, 0, 0, 0]
        self._generations = [0] * total
        self._holdings: dict[str, _Holding] = {}
        self._names: dict[bytes, int] = {}
        self._digests: list[bytes | None] = [None] * total
        self._tenants: dict[int, str] = {}
        # How many owners there had been when a tenant was purged last.
        self._purges: dict[str, int] = {}
        self._begun = 0
        self._condemned: set[int] = set()
        self._dirty: list[int] = []

    @property
    def free(self) -> int:
        """The number of empty blocks."""
        return len(self._free)

    def can_allocate(self, count: int, keeping: Iterable[int] = ()) -> bool:
        """Whether `allocate(…, count)` would succeed after `keeping`, each once, were shared."""
        kept = sum(block in self._cached for block in keeping)
        return count <= len(self._free) + len(self._cached) - kept

    def allocate(self, owner: str, count: int) -> list[int]:
        """Give `owner` that many more blocks, running; OutOfBlocks takes none."""
        if count < 0:
            raise ValueError("cannot allocate a negative number of blocks")
        if not self.can_allocate(count):
            raise OutOfBlocks(
                f"{count} blocks wanted, {self.free} of {self.total} free, "
                f"{len(self._cached)} cached"
            )
        # In order, because consecutive blocks are read faster.
        blocks = sorted(self._take() for _ in range(count))
        for block in blocks:
            self._generations[block] += 1
        self._hold(owner, blocks)
        return blocks

    def share(self, owner: str, blocks: Iterable[int]) -> None:
        """Let `owner` hold blocks that have a holder already, or that are cached."""
        blocks = list(blocks)
        for block in blocks:
            if not self._holders[block] and block not in self._cached:
                raise ValueError(f"block {block} is free and cannot be shared")
        for block in blocks:
            self._cached.pop(block, None)
        self._hold(owner, blocks)

    def release(self, owner: str) -> int:
        """Take back all blocks of `owner`; returns how many have no holder now. Idempotent."""
        holding = self._holdings.pop(owner, None)
        if holding is None:
            return 0
        released = 0
        # Backwards: the end of a chain is evicted first, as a lookup ends at a missing block.
        for block in reversed(holding.blocks):
            if self._count(block, -_HOLDER[holding.phase]):
                continue
            released += 1
            if block in self._condemned:
                self._dirty.append(block)
            elif self._digests[block] is not None:
                self._cached[block] = None
            else:
                self._free.append(block)
        return released

    def set_phase(self, owner: str, phase: BlockPhase) -> None:
        """Move all of the owner's blocks to another phase; KeyError for an unknown owner."""
        holding = self._holdings[owner]
        change = _HOLDER[phase] - _HOLDER[holding.phase]
        for block in holding.blocks:
            self._count(block, change)
        holding.phase = phase

    def publish(self, owner: str, index: int, digest: bytes, tenant: str = "") -> None:
        """Name the owner's block number `index`, whose KV is computed, by its content.

        `tenant` is for `purge`.

        A known digest stays with the block that has it, and a condemned block stays without a
        name. ValueError where the owner is not running, as KV that still arrives has no name.
        """
        holding = self._holdings[owner]
        if holding.phase is not BlockPhase.RUNNING:
            raise ValueError(f"{owner} is {holding.phase.value}: its blocks cannot be named")
        if holding.number <= self._purges.get(tenant, 0):
            self.condemn(owner)  # it began before its tenant was purged
        block = holding.blocks[index]
        if digest in self._names or block in self._condemned:
            return
        if self._digests[block] is not None:
            raise ValueError(f"block {block} has another name already")
        self._names[digest] = block
        self._digests[block] = digest
        self._tenants[block] = tenant

    def match(self, digests: Sequence[bytes]) -> list[int]:
        """The blocks of the longest leading run of digests that are known."""
        blocks = []
        for digest in digests:
            block = self._names.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def digest(self, block: int) -> bytes | None:
        """The name of a block, which proves its tenant and tokens; None where it has none."""
        return self._digests[block]

    def condemn(self, owner: str) -> None:
        """Hide the owner's blocks, which have NaNs in them, from later requests.

        Other holders of these blocks keep them. Without a holder they are quarantined until
        `cleaned`.
        """
        for block in self.blocks_of(owner):
            self._unname(block)
            self._condemned.add(block)

    def purge(self, tenant: str) -> int:
        """Hide all named blocks of a tenant and have them overwritten; returns their number.

        Requests that hold these blocks keep them, and the blocks are overwritten afterwards. So are
        the blocks that requests of the tenant fill later, if they began before.
        """
        self._purges[tenant] = self._begun
        found = [block for block, name in self._tenants.items() if name == tenant]
        for block in found:
            self._unname(block)
            self._condemned.add(block)
            if block in self._cached:
                del self._cached[block]
                self._dirty.append(block)
        return len(found)

    def take_dirty(self) -> list[int]:
        """Condemned blocks without a holder, to be overwritten; each is returned once."""
        dirty, self._dirty = self._dirty, []
        return dirty

    def cleaned(self, blocks: Collection[int]) -> None:
        """Free blocks from `take_dirty` that were overwritten."""
        self._condemned.difference_update(blocks)
        self._free.extend(blocks)

    def blocks_of(self, owner: str) -> tuple[int, ...]:
        """The owner's blocks in order of allocation; empty for an unknown owner."""
        holding = self._holdings.get(owner)
        return tuple(holding.blocks) if holding else ()

    def generation(self, block: int) -> int:
        """The number of times that the pool gave this block out."""
        return self._generations[block]

    def owners(self) -> frozenset[str]:
        """The owners of at least one block."""
        return frozenset(name for name, holding in self._holdings.items() if holding.blocks)

    def counts(self) -> BlockCounts:
        """Blocks by state. A shared block counts once, in its owners' most active phase."""
        free, cached = len(self._free), len(self._cached)
        unclean = self._tally[_UNHELD] - free - cached
        return BlockCounts(
            total=self.total,
            free=free,
            cached=cached,
            running=self._tally[_RUNNING],
            leased=self._tally[_LEASED],
            quarantined=self._tally[_QUARANTINED] + unclean,
        )

    def orphaned(self, living: Iterable[str]) -> int:
        """The number of blocks with an owner that is not among the living."""
        lost = self.owners() - set(living)
        return len({block for owner in lost for block in self._holdings[owner].blocks})

    def _take(self) -> int:
        """An empty block, or else the cached block that was used longest ago."""
        if self._free:
            return self._free.pop()
        block, _ = self._cached.popitem(last=False)
        self._unname(block)
        self.evictions += 1
        return block

    def _hold(self, owner: str, blocks: Sequence[int]) -> None:
        holding = self._holdings.get(owner)
        if holding is None:
            self._begun += 1
            holding = self._holdings[owner] = _Holding(BlockPhase.RUNNING, [], self._begun)
        for block in blocks:
            self._count(block, _HOLDER[holding.phase])
        holding.blocks.extend(blocks)

    def _count(self, block: int, change: int) -> int:
        """Change a block's holders, and with them how many blocks are in which state."""
        holders = self._holders[block]
        self._tally[bisect_right(_FLOORS, holders)] -= 1
        holders += change
        self._tally[bisect_right(_FLOORS, holders)] += 1
        self._holders[block] = holders
        return holders

    def _unname(self, block: int) -> None:
        digest, self._digests[block] = self._digests[block], None
        self._tenants.pop(block, None)
        if digest is not None:
            del self._names[digest]
