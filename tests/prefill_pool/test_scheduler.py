"""The prefill scheduler: order by example, everything else as a state machine."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.blocks import BlockPool
from engine.errors import Overloaded, PromptTooLong
from engine.sampling import SamplingParams
from engine.sequence import Sequence
from prefill_pool.scheduler import PrefillScheduler
from tests.paper_kv import PaperKv

BLOCK = 4
MODEL = "model"


def sequence(owner: str, tokens: int, first: int = 0, tenant: str = "default") -> Sequence:
    prompt = [first, *range(1, tokens)]
    return Sequence(owner, prompt, tokens, SamplingParams(max_tokens=4), tenant=tenant)


def scheduler(
    pool: BlockPool, *, chunk=8, waiting=100, parked=1.0, identity=None
) -> PrefillScheduler:
    return PrefillScheduler(
        pool,
        block_size=BLOCK,
        chunk_tokens=chunk,
        max_waiting=waiting,
        parked_fraction=parked,
        identity=identity,
    )


def run_to_end(subject: PrefillScheduler) -> list[str]:
    order = []
    while spans := subject.schedule():
        for done in subject.complete(spans):
            order.append(done.owner)
            subject.remove(done.owner)
    return order


def test_earliest_deadline_first_then_shortest():
    subject = scheduler(BlockPool(100))
    subject.submit(sequence("late", 3), deadline=9)
    subject.submit(sequence("long", 30), deadline=5)
    subject.submit(sequence("short", 3), deadline=5)
    assert run_to_end(subject) == ["short", "long", "late"]


def test_a_chunk_holds_several_prompts_and_cuts_the_last():
    subject = scheduler(BlockPool(100), chunk=8)
    subject.submit(sequence("a", 3), deadline=1)
    subject.submit(sequence("b", 9), deadline=2)
    spans = subject.schedule()
    assert [(s.sequence.owner, s.start, s.count) for s in spans] == [("a", 0, 3), ("b", 0, 5)]


def test_a_prompt_that_can_never_fit_is_refused():
    with pytest.raises(PromptTooLong, match="needs 3 KV blocks, the prefill pool has 2"):
        scheduler(BlockPool(2)).submit(sequence("a", 9), deadline=1)


def test_a_full_queue_refuses_and_says_when_to_come_back():
    subject = scheduler(BlockPool(8), waiting=1)
    subject.submit(sequence("a", 1), deadline=1)
    with pytest.raises(Overloaded) as refusal:
        subject.submit(sequence("b", 1), deadline=1)
    assert refusal.value.retry_after_s


def test_nothing_starts_while_too_much_is_parked():
    subject = scheduler(BlockPool(8), parked=0.25)
    subject.submit(sequence("a", 12), deadline=1)
    while not subject.complete(subject.schedule()):
        pass
    subject.submit(sequence("b", 1), deadline=1)
    assert subject.schedule() == []
    subject.remove("a")
    assert [span.sequence.owner for span in subject.schedule()] == ["b"]


def test_a_prompt_that_finds_no_blocks_does_not_hold_up_who_has_them():
    subject = scheduler(BlockPool(10), chunk=6)
    subject.submit(sequence("long", 29), deadline=0)
    subject.complete(subject.schedule())
    subject.submit(sequence("short", 9), deadline=0)
    assert run_to_end(subject) == ["long", "short"]


def prefill(subject: PrefillScheduler, new: Sequence) -> list[tuple[int, int]]:
    """Compute a prompt alone, park it and let it go; returns its chunks."""
    subject.submit(new, deadline=0)
    chunks = []
    while spans := subject.schedule():
        chunks += [(span.start, span.count) for span in spans]
        subject.complete(spans)
    subject.remove(new.owner)
    return chunks


def test_a_prompt_starts_behind_its_cached_prefix_and_computes_at_least_its_last_token():
    subject = scheduler(BlockPool(20), chunk=100, identity=MODEL)
    assert prefill(subject, sequence("a", 12)) == [(0, 12)]
    assert prefill(subject, sequence("same", 12)) == [(8, 4)]
    longer = sequence("longer", 14)
    assert prefill(subject, longer) == [(12, 2)]
    assert longer.cached_tokens == 12
    assert prefill(subject, sequence("other", 12, first=9)) == [(0, 12)]
    assert prefill(subject, sequence("foreign", 12, tenant="x")) == [(0, 12)]


def test_blocks_are_shared_from_the_first_chunk_on():
    subject = scheduler(BlockPool(20), chunk=8, identity=MODEL)
    subject.submit(sequence("a", 30), deadline=0)
    subject.complete(subject.schedule())
    subject.submit(sequence("b", 30), deadline=-1)
    second = subject.schedule()[0]
    assert (second.sequence.owner, second.start) == ("b", 8)
    assert second.sequence.blocks[:2] == list(subject.pool.held("a")[:2])


def test_an_evicted_prefix_is_computed_again():
    subject = scheduler(BlockPool(5), chunk=100, identity=MODEL)
    prefill(subject, sequence("a", 12))
    prefill(subject, sequence("b", 16, first=9))
    assert prefill(subject, sequence("c", 12)) == [(4, 8)]


def test_nothing_of_a_failed_step_or_a_condemned_request_is_found():
    subject = scheduler(BlockPool(20), chunk=8, identity=MODEL)
    subject.submit(sequence("failed", 12), deadline=0)
    subject.schedule()
    subject.complete([])
    subject.remove("failed")
    assert prefill(subject, sequence("b", 9))[0] == (0, 8)
    subject.submit(sequence("nan", 13), deadline=0)
    spans = subject.schedule()
    assert spans[0].start == 8
    subject.pool.condemn("nan")
    subject.complete(spans)
    subject.remove("nan")
    assert prefill(subject, sequence("c", 13))[0] == (0, 8)
    assert subject.pool.counts().quarantined == len(subject.pool.take_dirty()) == 4


class PrefillMachine(RuleBasedStateMachine):
    """Submit, cancel, step and hand over in any order."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(10)
        self.subject = scheduler(self.pool, chunk=6, waiting=5, parked=0.5, identity=MODEL)
        self.kv = PaperKv(self.pool, BLOCK, MODEL)
        self.alive: dict[str, Sequence] = {}
        self.parked: set[str] = set()
        self.spans = []
        self.count = 0

    @rule(
        tokens=st.integers(1, 45),
        deadline=st.integers(0, 5),
        first=st.integers(0, 1),
        tenant=st.sampled_from(["a", "b"]),
    )
    def submit(self, tokens, deadline, first, tenant):
        self.count += 1
        new = sequence(f"r{self.count}", tokens, first, tenant)
        try:
            self.subject.submit(new, deadline)
        except PromptTooLong:
            assert tokens > 40
        except Overloaded:
            assert self.subject.waiting == 5
        else:
            self.alive[new.owner] = new

    @precondition(lambda self: not self.spans)
    @rule()
    def schedule(self):
        self.spans = self.subject.schedule()
        assert sum(span.count for span in self.spans) <= 6
        for span in self.spans:
            assert span.sequence.owner in self.alive
            assert span.start == span.sequence.computed
            assert len(span.sequence.blocks) * BLOCK >= span.start + span.count

    @precondition(lambda self: self.spans)
    @rule(failed=st.booleans())
    def complete(self, failed):
        spans, self.spans = self.spans, []
        for span in spans:
            self.kv.compute(span)
        for done in self.subject.complete([] if failed else spans):
            assert done.owner in self.alive
            assert done.computed == len(done.tokens)
            self.parked.add(done.owner)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def remove(self, data):
        owner = data.draw(st.sampled_from(sorted(self.alive)))
        in_step = {span.sequence.owner for span in self.spans}
        held = self.pool.held(owner)
        self.subject.remove(owner)
        # Blocks that a step is writing stay taken until the step has ended.
        assert self.pool.held(owner) == (held if owner in in_step else ())
        del self.alive[owner]
        self.parked.discard(owner)

    @precondition(lambda self: not self.spans)
    @rule()
    def drain(self):
        for owner in sorted(self.parked):
            self.subject.remove(owner)
            del self.alive[owner]
        self.parked.clear()
        while spans := self.subject.schedule():
            for span in spans:
                self.kv.compute(span)
            for done in self.subject.complete(spans):
                self.subject.remove(done.owner)
                del self.alive[done.owner]
        assert not self.alive
        assert self.pool.counts().used == 0

    @invariant()
    def accounts(self):
        self.kv.check_names()
        assert self.pool.orphaned(self.subject.owners()) == 0
        assert self.subject.parked == len(self.parked)
        total = self.subject.waiting + self.subject.running + self.subject.parked
        assert total == len(self.alive)


TestPrefillScheduler = PrefillMachine.TestCase
