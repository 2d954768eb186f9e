"""Steps scheduled before the tokens of the step before are known. Pure."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kv.block_pool import BlockPool
from engine.types.sampling_params import SamplingParams
from tests.decode_pool.scheduling import BLOCK, local_sequence, scheduler, sequence, start

MOST = 6


class Pipeline:
    """Steps on paper, one of them ahead where the scheduler allows it."""

    def __init__(self, blocks):
        self.pool = BlockPool(blocks)
        self.subject = scheduler(self.pool, batch=8)
        self.under_way, self.streams, self.stopped = [], {}, set()

    def join(self, prompt, max_tokens):
        new = sequence(f"{len(self.streams)}", prompt, max_tokens)
        if self.subject.most_blocks(new) <= self.pool.total:
            self.streams[new.owner] = new
            self.subject.offer(new, 0.0)
        self.admit()

    def admit(self):
        for granted in self.subject.grant():
            self.subject.commit(granted.owner)

    def stop(self, index):
        here = sorted(self.subject.owners() & self.streams.keys())
        if here:
            self.stopped.add(owner := here[index % len(here)])
            self.subject.remove(owner)

    def turn(self):
        """Begin a step, launch one behind it, and read the first."""
        self.admit()
        if not self.under_way:
            self.begin(self.subject.schedule() or self.subject.schedule_chunk(0.0))
        if self.under_way:
            ahead = self.subject.schedule_ahead(self.under_way[0], MOST)
            if ahead:
                self.begin(ahead, self.under_way[0])
            self.end(self.under_way.pop(0))

    def begin(self, spans, before=()):
        if not spans:
            return
        for span in spans:
            one = span.sequence
            assert len(one.blocks) * BLOCK >= span.start + span.count
            held = self.pool.blocks_of(one.owner)
            assert set(one.blocks) <= set(held)
            if span.follows is not None:
                assert before[span.follows].sequence is one
                assert span.start == before[span.follows].start + 1
        self.under_way.append(spans)

    def end(self, spans):
        kept = self.subject.complete(spans)
        for span in kept:
            one = span.sequence
            if one.remaining == 0:
                one.tokens.append(0)
                if one.output_tokens == one.sampling.max_tokens:
                    self.subject.remove(one.owner)


OPS = st.one_of(
    st.tuples(st.just("join"), st.integers(1, 12), st.integers(2, 9)),
    st.tuples(st.just("stop"), st.integers(0, 7)),
    st.tuples(st.just("turn")),
    st.tuples(st.just("turn")),
)


@settings(max_examples=200, deadline=None)
@given(blocks=st.integers(4, 24), ops=st.lists(OPS, max_size=40))
def test_any_order_of_joins_and_stops_leaves_every_stream_its_tokens_and_no_block(blocks, ops):
    pipeline = Pipeline(blocks)
    for name, *arguments in ops:
        getattr(pipeline, name)(*arguments)
        assert not pipeline.pool.orphaned(pipeline.subject.owners())
    for _ in range(400):
        pipeline.turn()
    assert not pipeline.under_way and pipeline.pool.counts().used == 0
    for owner, one in pipeline.streams.items():
        assert one.output_tokens == one.sampling.max_tokens or owner in pipeline.stopped


def ahead_of(subject):
    spans = subject.schedule()
    return spans, subject.schedule_ahead(spans, MOST)


def test_a_stream_that_ends_by_its_length_takes_no_part_in_vain():
    subject = scheduler(BlockPool(40))
    start(subject, short := sequence("short", 3, max_tokens=2))
    start(subject, long := sequence("long", 3, max_tokens=9))
    spans, ahead = ahead_of(subject)
    assert [span.sequence for span in spans] == [short, long]
    assert [(span.sequence, span.start, span.follows) for span in ahead] == [(long, 4, 1)]


def test_blocks_of_a_stream_that_stops_stay_until_the_step_ahead_has_ended():
    pool = BlockPool(40)
    subject = scheduler(pool)
    start(subject, one := sequence("one", 3))
    spans, ahead = ahead_of(subject)
    held = pool.blocks_of("one")
    subject.complete(spans)
    subject.remove("one")
    assert pool.blocks_of("one") == held and subject.leaving("one")
    assert subject.complete(ahead) == [] and one.computed == 4
    assert pool.blocks_of("one") == () and not subject.leaving("one")


@pytest.mark.parametrize("in_step", [True, False])
def test_a_stream_that_needs_its_last_token_on_the_host_makes_the_next_step_wait(in_step):
    subject = scheduler(BlockPool(40))
    start(subject, sequence("plain", 3))
    new = sequence("guided", 3)
    new.matcher = object()
    if in_step:
        start(subject, new)
    spans = subject.schedule()
    if not in_step:
        start(subject, new)
    assert subject.schedule_ahead(spans, MOST) == []


@pytest.mark.parametrize(
    "sampling", [{"presence_penalty": 0.5}, {"logit_bias": {1: 2.0}}, {"repetition_penalty": 1.1}]
)
def test_penalties_and_biases_may_follow(sampling):
    subject = scheduler(BlockPool(40))
    start(subject, new := sequence("penalised", 3))
    new.sampling = SamplingParams(max_tokens=8, **sampling)
    assert subject.schedule_ahead(subject.schedule(), MOST)


def test_no_step_is_scheduled_ahead_where_a_prompt_waits_for_its_turn():
    subject = scheduler(BlockPool(40))
    start(subject, sequence("stream", 3))
    spans = subject.schedule()
    subject.offer_prompt(local_sequence("prompt", 5), 0.0)
    assert subject.schedule_ahead(spans, MOST) == []


def test_no_stream_is_preempted_for_a_step_ahead():
    """Each stream fills two blocks with this step, and one block is left."""
    subject = scheduler(BlockPool(5))
    for owner in ("one", "two"):
        start(subject, sequence(owner, 2 * BLOCK - 1))
    spans, ahead = ahead_of(subject)
    assert len(spans) == 2 and ahead == []
    assert not any(subject.preemptions(owner) for owner in ("one", "two"))


def test_a_step_ahead_has_at_most_the_rows_that_are_recorded():
    subject = scheduler(BlockPool(60), batch=MOST + 1)
    for number in range(MOST):
        start(subject, sequence(f"{number}", 3))
    spans, ahead = ahead_of(subject)
    assert len(spans) == len(ahead) == MOST
    subject.complete(spans)
    start(subject, sequence("more", 3))
    assert subject.schedule_ahead(ahead, MOST) == []
