"""The block pool as a state machine: whatever happens, every block is accounted for."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.kv.block_pool import BlockPhase, BlockPool, OutOfBlocks

TOTAL = 12
OWNERS = st.sampled_from(["a", "b", "c", "d"])
DIGESTS = st.sampled_from([bytes([number]) for number in range(10)])


TENANTS = st.sampled_from(["even", "odd"])


def tenant_of(digest):
    return "odd" if digest[0] % 2 else "even"


class PoolMachine(RuleBasedStateMachine):
    """Compares the pool with a plain model: owner to (blocks, phase), names, cached in order."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(TOTAL)
        self.model: dict[str, list[int]] = {}
        self.phases: dict[str, BlockPhase] = {}
        self.generations = [0] * TOTAL
        self.names: dict[bytes, int] = {}
        self.cached: list[int] = []
        self.condemned: set[int] = set()
        self.taken: list[int] = []
        self.before_purge: dict[str, set[str]] = {"even": set(), "odd": set()}

    @rule(owner=OWNERS, count=st.integers(0, TOTAL + 1))
    def allocate(self, owner, count):
        free = self._free()
        assert self.pool.can_allocate(count) == (count <= len(free) + len(self.cached))
        if count > len(free) + len(self.cached):
            with pytest.raises(OutOfBlocks):
                self.pool.allocate(owner, count)
            return
        blocks = self.pool.allocate(owner, count)
        assert len(set(blocks)) == count
        assert blocks == sorted(blocks)
        evicted = self.cached[: max(0, count - len(free))]
        assert set(blocks) <= free | set(evicted)
        assert set(evicted) <= set(blocks)
        self.cached = self.cached[len(evicted) :]
        self._forget(evicted)
        for block in blocks:
            assert self.pool.generation(block) > self.generations[block]
            self.generations[block] = self.pool.generation(block)
        self._hold(owner, blocks)

    @precondition(lambda self: any(self.model.values()))
    @rule(data=st.data(), owner=OWNERS)
    def share(self, data, owner):
        source = data.draw(st.sampled_from([o for o, blocks in self.model.items() if blocks]))
        blocks = self.model[source][:2]
        self.pool.share(owner, blocks)
        self._hold(owner, blocks)

    @rule(owner=OWNERS, digests=st.lists(DIGESTS, max_size=4))
    def match_and_share(self, owner, digests):
        blocks = self.pool.match(digests)
        assert blocks == [self.names[digest] for digest in digests[: len(blocks)]]
        assert len(blocks) == len(digests) or digests[len(blocks)] not in self.names
        available = len(self._free()) + len(set(self.cached) - set(blocks))
        assert self.pool.can_allocate(available, keeping=set(blocks))
        assert not self.pool.can_allocate(available + 1, keeping=set(blocks))
        self.pool.share(owner, blocks)
        self.cached = [block for block in self.cached if block not in blocks]
        self._hold(owner, blocks)

    @precondition(lambda self: any(self.model.values()))
    @rule(data=st.data(), digest=DIGESTS)
    def publish(self, data, digest):
        owner = data.draw(st.sampled_from([o for o, blocks in self.model.items() if blocks]))
        index = data.draw(st.integers(0, len(self.model[owner]) - 1))
        block = self.model[owner][index]
        refused = self.phases[owner] is not BlockPhase.RUNNING
        renamed = block in self.names.values() and digest not in self.names
        if refused or renamed:
            with pytest.raises(ValueError, match=r"named|another name"):
                self.pool.publish(owner, index, digest)
            return
        self.pool.publish(owner, index, digest, tenant_of(digest))
        if owner in self.before_purge[tenant_of(digest)]:
            self._forget(self.model[owner])
            self.condemned.update(self.model[owner])
        if digest not in self.names and block not in self.condemned:
            self.names[digest] = block

    @rule(owner=OWNERS)
    def release(self, owner):
        before = self._held()
        blocks = self.model.pop(owner, [])
        self.phases.pop(owner, None)
        for owners in self.before_purge.values():
            owners.discard(owner)
        gone = before - self._held()
        assert self.pool.release(owner) == len(gone)
        # The first use of a block with two holders is released last.
        for block in reversed(dict.fromkeys(blocks)):
            if block in gone and block in self.names.values():
                self.cached.append(block)

    @rule(owner=OWNERS)
    def condemn(self, owner):
        self.pool.condemn(owner)
        self._forget(self.model.get(owner, []))
        self.condemned.update(self.model.get(owner, []))

    @rule(tenant=TENANTS)
    def purge(self, tenant):
        gone = [block for digest, block in self.names.items() if tenant_of(digest) == tenant]
        assert self.pool.purge(tenant) == len(gone)
        self.before_purge[tenant] = set(self.phases)
        self._forget(gone)
        self.condemned.update(gone)
        self.cached = [block for block in self.cached if block not in gone]

    @rule()
    def take_dirty(self):
        dirty = self.pool.take_dirty()
        assert set(dirty) == self.condemned - self._held() - set(self.taken)
        self.taken += dirty

    @precondition(lambda self: self.taken)
    @rule()
    def clean(self):
        self.pool.cleaned(self.taken)
        self.condemned -= set(self.taken)
        self.taken = []

    @rule(owner=OWNERS, phase=st.sampled_from(BlockPhase))
    def set_phase(self, owner, phase):
        if owner not in self.phases:
            with pytest.raises(KeyError):
                self.pool.set_phase(owner, phase)
            return
        self.pool.set_phase(owner, phase)
        self.phases[owner] = phase

    @rule(living=st.sets(OWNERS))
    def audit(self, living):
        lost = {b for owner, blocks in self.model.items() if owner not in living for b in blocks}
        assert self.pool.orphaned(living) == len(lost)

    @invariant()
    def adds_up(self):
        counts = self.pool.counts()
        assert counts.total == TOTAL
        assert counts.free + counts.cached + counts.used == TOTAL
        assert counts.free == self.pool.free == len(self._free())
        assert counts.cached == len(self.cached)
        running, leased, quarantined = (self._in(phase) for phase in BlockPhase)
        assert counts.running == len(running)
        assert counts.leased == len(leased - running)
        unclean = self.condemned - self._held()
        assert counts.quarantined == len(quarantined - leased - running) + len(unclean)
        for owner, blocks in self.model.items():
            assert list(self.pool.blocks_of(owner)) == blocks

    @invariant()
    def names_agree(self):
        named = {block: digest for digest, block in self.names.items()}
        assert len(named) == len(self.names)
        for block in range(TOTAL):
            assert self.pool.digest(block) == named.get(block)
        assert set(self.cached) == set(named) - self._held()

    def _hold(self, owner, blocks):
        self.model.setdefault(owner, []).extend(blocks)
        self.phases.setdefault(owner, BlockPhase.RUNNING)

    def _held(self):
        return {block for blocks in self.model.values() for block in blocks}

    def _free(self):
        return set(range(TOTAL)) - self._held() - set(self.cached) - self.condemned

    def _forget(self, blocks):
        self.names = {digest: block for digest, block in self.names.items() if block not in blocks}

    def _in(self, phase):
        return {b for o, found in self.phases.items() if found is phase for b in self.model[o]}


PoolMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=60)
TestBlockPool = PoolMachine.TestCase


def test_a_free_block_cannot_be_shared():
    with pytest.raises(ValueError, match="free"):
        BlockPool(2).share("a", [0])


def test_an_empty_pool_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        BlockPool(0)


def test_the_end_of_a_chain_is_evicted_first_and_the_longest_unused_chain_before_others():
    pool = BlockPool(4)
    for owner, digests in (("old", (b"o0", b"o1")), ("new", (b"n0", b"n1"))):
        pool.allocate(owner, 2)
        for index, digest in enumerate(digests):
            pool.publish(owner, index, digest)
    pool.release("old")
    pool.release("new")
    pool.allocate("next", 1)
    assert len(pool.match([b"o0", b"o1"])) == 1
    pool.allocate("next", 2)
    assert pool.match([b"o0"]) == []
    assert len(pool.match([b"n0", b"n1"])) == 1
    assert pool.evictions == 3


def test_a_match_protects_from_eviction_and_renews():
    pool = BlockPool(2)
    for owner in ("a", "b"):
        pool.allocate(owner, 1)
        pool.publish(owner, 0, owner.encode())
        pool.release(owner)
    pool.share("c", pool.match([b"a"]))
    with pytest.raises(OutOfBlocks):
        pool.allocate("d", 2)
    pool.release("c")
    pool.allocate("d", 1)
    assert pool.match([b"a"])
    assert not pool.match([b"b"])
