"""The block pool as a state machine: whatever happens, every block is accounted for."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.blocks import BlockPool, OutOfBlocks, Phase

TOTAL = 12
OWNERS = st.sampled_from(["a", "b", "c", "d"])


class PoolMachine(RuleBasedStateMachine):
    """Compares the pool with a plain model: owner to (blocks, phase)."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(TOTAL)
        self.model: dict[str, list[int]] = {}
        self.phases: dict[str, Phase] = {}
        self.generations = [0] * TOTAL

    @rule(owner=OWNERS, count=st.integers(0, TOTAL + 1))
    def allocate(self, owner, count):
        free = TOTAL - len(self._held())
        if count > free:
            with pytest.raises(OutOfBlocks):
                self.pool.allocate(owner, count)
            return
        blocks = self.pool.allocate(owner, count)
        assert len(set(blocks)) == count
        assert not self._held() & set(blocks)
        for block in blocks:
            assert self.pool.generation(block) > self.generations[block]
            self.generations[block] = self.pool.generation(block)
        self.model.setdefault(owner, []).extend(blocks)
        self.phases.setdefault(owner, Phase.RUNNING)

    @precondition(lambda self: any(self.model.values()))
    @rule(data=st.data(), owner=OWNERS)
    def share(self, data, owner):
        source = data.draw(st.sampled_from([o for o, blocks in self.model.items() if blocks]))
        blocks = self.model[source][:2]
        self.pool.share(owner, blocks)
        self.model.setdefault(owner, []).extend(blocks)
        self.phases.setdefault(owner, Phase.RUNNING)

    @rule(owner=OWNERS)
    def release(self, owner):
        before = self._held()
        self.model.pop(owner, None)
        self.phases.pop(owner, None)
        assert self.pool.release(owner) == len(before) - len(self._held())

    @rule(owner=OWNERS, phase=st.sampled_from(Phase))
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
        assert counts.used == len(self._held())
        running = {b for o, p in self.phases.items() if p is Phase.RUNNING for b in self.model[o]}
        assert counts.running == len(running)
        for owner, blocks in self.model.items():
            assert list(self.pool.held(owner)) == blocks

    def _held(self):
        return {block for blocks in self.model.values() for block in blocks}


TestBlockPool = PoolMachine.TestCase


def test_a_free_block_cannot_be_shared():
    with pytest.raises(ValueError, match="free"):
        BlockPool(2).share("a", [0])


def test_an_empty_pool_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        BlockPool(0)
