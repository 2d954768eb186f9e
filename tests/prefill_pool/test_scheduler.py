"""The prefill scheduler: order by example, everything else as a state machine."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.errors import Overloaded, PromptTooLong
from engine.kv.block_pool import BlockPool
from engine.scheduling.prompt_order import PromptOrder
from engine.scheduling.prompt_queue import MOST_PASSES
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence
from prefill_pool.scheduler import PrefillScheduler
from tests.paper_kv import PaperKv

BLOCK = 4
MODEL = "model"


def sequence(owner: str, tokens: int, first: int = 0, **options) -> Sequence:
    prompt = [first, *range(1, tokens)]
    return Sequence(owner, prompt, tokens, SamplingParams(max_tokens=4), **options)


def scheduler(
    pool: BlockPool, *, chunk=8, waiting=100, parked=1.0, identity=None
) -> PrefillScheduler:
    return PrefillScheduler(
        pool,
        PromptOrder(chunk),
        block_size=BLOCK,
        max_waiting=waiting,
        parked_fraction=parked,
        identity=identity,
    )


def run_to_end(subject: PrefillScheduler) -> list[str]:
    order = []
    while spans := subject.schedule(0.0):
        for done in subject.complete(spans):
            order.append(done.owner)
            subject.remove(done.owner)
    return order


def test_prompts_in_time_go_before_late_ones_and_short_before_long():
    subject = scheduler(BlockPool(100), chunk=3)
    subject.order.learn(1000, 1000.0)
    subject.submit(sequence("late", 3, ttft_budget_s=2), now=0)
    subject.submit(sequence("long", 30, ttft_budget_s=90), now=0)
    subject.submit(sequence("short", 6, ttft_budget_s=90), now=0)
    assert run_to_end(subject) == ["short", "long", "late"]


def test_a_short_prompt_overtakes_a_pass_that_was_begun_and_a_long_one_does_not():
    subject = scheduler(BlockPool(100), chunk=16)
    subject.submit(sequence("long", 40), now=0)
    begun = subject.schedule(0.0)
    assert subject.schedule(0.0) == []
    subject.submit(sequence("as long", 40), now=0)
    assert subject.schedule(0.0) == []
    subject.submit(sequence("short", 5), now=0)
    overtaking = subject.schedule(0.0)
    assert [span.sequence.owner for span in overtaking] == ["short"]
    assert [done.owner for done in subject.complete(overtaking)] == ["short"]
    assert subject.complete(begun) == []
    # It goes on where it was.
    assert (subject.schedule(0.0)[0].sequence.owner, begun[0].sequence.computed) == ("long", 16)


def test_batch_work_gives_way_between_two_layers():
    subject = scheduler(BlockPool(100), chunk=16)
    subject.submit(sequence("batch", 40, lane="batch"), now=0)
    subject.schedule(0.0)
    subject.submit(sequence("chat", 30), now=0)
    assert [span.sequence.owner for span in subject.schedule(0.0)] == ["chat"]


def test_a_chunk_has_several_prompts_and_cuts_the_last():
    subject = scheduler(BlockPool(100), chunk=8)
    subject.submit(sequence("a", 3), now=1)
    subject.submit(sequence("b", 9), now=2)
    spans = subject.schedule(0.0)
    assert [(s.sequence.owner, s.start, s.count) for s in spans] == [("a", 0, 3), ("b", 0, 5)]


def test_a_prompt_that_can_never_fit_is_refused():
    with pytest.raises(PromptTooLong, match="needs 3 KV blocks, the prefill pool has 2"):
        scheduler(BlockPool(2)).submit(sequence("a", 9), now=1)


def test_a_full_queue_refuses_and_gives_a_retry_time():
    subject = scheduler(BlockPool(8), waiting=1)
    subject.submit(sequence("a", 1), now=1)
    with pytest.raises(Overloaded) as refusal:
        subject.submit(sequence("b", 1), now=1)
    assert refusal.value.retry_after_s


def test_the_batch_lane_leaves_a_part_of_the_queue_to_the_others():
    subject = scheduler(BlockPool(8), waiting=4)
    for number in range(3):
        subject.submit(sequence(f"b{number}", 1, lane="batch"), now=1)
    with pytest.raises(Overloaded, match="3 prompts wait already"):
        subject.submit(sequence("b3", 1, lane="batch"), now=1)
    subject.submit(sequence("a", 1), now=1)


def test_nothing_starts_while_too_much_is_parked():
    subject = scheduler(BlockPool(8), parked=0.25)
    subject.submit(sequence("a", 12), now=1)
    while not subject.complete(subject.schedule(0.0)):
        pass
    subject.submit(sequence("b", 1), now=1)
    assert subject.schedule(0.0) == []
    subject.remove("a")
    assert [span.sequence.owner for span in subject.schedule(0.0)] == ["b"]


def test_a_prompt_without_blocks_does_not_delay_prompts_with_blocks():
    subject = scheduler(BlockPool(10), chunk=6)
    subject.submit(sequence("long", 29), now=0)
    subject.complete(subject.schedule(0.0))
    subject.submit(sequence("short", 9), now=0)
    assert run_to_end(subject) == ["long", "short"]


def prefill(subject: PrefillScheduler, new: Sequence) -> list[tuple[int, int]]:
    """Compute a prompt alone, park it and let it go; returns its chunks."""
    subject.submit(new, now=0)
    chunks = []
    while spans := subject.schedule(0.0):
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
    subject.submit(sequence("a", 30), now=0)
    subject.complete(subject.schedule(0.0))
    subject.submit(sequence("b", 20), now=0)
    second = subject.schedule(0.0)[0]
    assert (second.sequence.owner, second.start) == ("b", 8)
    assert second.sequence.blocks[:2] == list(subject.pool.blocks_of("a")[:2])


def test_an_evicted_prefix_is_computed_again():
    subject = scheduler(BlockPool(5), chunk=100, identity=MODEL)
    prefill(subject, sequence("a", 12))
    prefill(subject, sequence("b", 16, first=9))
    assert prefill(subject, sequence("c", 12)) == [(4, 8)]


def test_nothing_of_a_failed_step_or_a_condemned_request_is_found():
    subject = scheduler(BlockPool(20), chunk=8, identity=MODEL)
    subject.submit(sequence("failed", 12), now=0)
    subject.abandon(subject.schedule(0.0))
    subject.remove("failed")
    assert prefill(subject, sequence("b", 9))[0] == (0, 8)
    subject.submit(sequence("nan", 13), now=0)
    spans = subject.schedule(0.0)
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
        self.passes = []
        self.now = 0.0
        self.count = 0

    @property
    def spans(self):
        return [span for spans in self.passes for span in spans]

    @rule(
        tokens=st.integers(1, 45),
        budget=st.sampled_from([0.0, 1.0, 100.0]),
        lane=st.sampled_from(["interactive", "batch"]),
        first=st.integers(0, 1),
        tenant=st.sampled_from(["a", "b"]),
    )
    def submit(self, tokens, budget, lane, first, tenant):
        self.count += 1
        owner = f"r{self.count}"
        new = sequence(owner, tokens, first, tenant=tenant, lane=lane, ttft_budget_s=budget)
        try:
            self.subject.submit(new, self.now)
        except PromptTooLong:
            assert tokens > 40
        except Overloaded:
            assert self.subject.waiting == 5 or (lane == "batch" and self.subject.waiting >= 3)
        else:
            self.alive[new.owner] = new

    @rule(later=st.sampled_from([0.0, 0.5, 20.0]))
    def schedule(self, later):
        self.now += later
        spans = self.subject.schedule(self.now)
        self.passes += [spans] if spans else []
        assert sum(span.count for span in spans) <= 6
        assert len(self.passes) <= MOST_PASSES
        owners = [span.sequence.owner for span in self.spans]
        assert len(owners) == len(set(owners))
        for span in spans:
            assert span.sequence.owner in self.alive
            assert span.start == span.sequence.computed
            assert len(span.sequence.blocks) * BLOCK >= span.start + span.count

    @precondition(lambda self: self.passes)
    @rule(failed=st.booleans(), seconds=st.floats(0, 2))
    def complete(self, failed, seconds):
        spans = self.passes.pop()
        self.subject.advanced(spans, seconds)
        if failed:
            self.subject.abandon(spans)
            return
        for span in spans:
            self.kv.compute(span)
        for done in self.subject.complete(spans):
            assert done.owner in self.alive
            assert done.computed == len(done.tokens)
            self.parked.add(done.owner)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def remove(self, data):
        owner = data.draw(st.sampled_from(sorted(self.alive)))
        in_step = {span.sequence.owner for span in self.spans}
        before = self.pool.blocks_of(owner)
        self.subject.remove(owner)
        # Blocks that a step is writing stay taken until the step has ended.
        assert self.pool.blocks_of(owner) == (before if owner in in_step else ())
        del self.alive[owner]
        self.parked.discard(owner)

    @precondition(lambda self: not self.spans)
    @rule()
    def drain(self):
        for owner in sorted(self.parked):
            self.subject.remove(owner)
            del self.alive[owner]
        self.parked.clear()
        while spans := self.subject.schedule(0.0):
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


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=6),
    st.integers(1, 40),
    st.sampled_from(["interactive", "batch"]),
    st.integers(0, 3),
)
@settings(deadline=None)
def test_a_prompt_that_needs_the_whole_pool_starves_behind_no_crowd(shorts, length, lane, held_for):
    """Short ones keep coming, and their KV stays parked for a while; the long one still ends."""
    subject = scheduler(BlockPool(10), chunk=8, parked=0.5)
    subject.order.learn(1000, 1000.0)
    subject.submit(sequence("long", length, lane=lane, ttft_budget_s=0.0), now=0.0)
    now, parked, number = 0.0, [], 0
    for turn in range(600):
        for tokens in shorts[: 6 - subject.waiting]:
            number += 1
            subject.submit(sequence(f"s{number}", tokens, ttft_budget_s=30.0), now)
        spans = subject.schedule(now)
        assert spans or parked
        now += sum(span.count for span in spans)
        for done in subject.complete(spans):
            if done.owner == "long":
                return
            parked.append((turn + held_for, done.owner))
        for due, owner in [one for one in parked if one[0] <= turn]:
            subject.remove(owner)
            parked.remove((due, owner))
    raise AssertionError("the long prompt never ended")
