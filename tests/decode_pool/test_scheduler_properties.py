"""The decode scheduler over long runs: none starves, blocks are used, queues are bounded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decode_pool.batching import Formed
from engine.errors import Overloaded
from engine.kv.block_pool import BlockPool
from tests.decode_pool.scheduling import BLOCK, local_sequence, scheduler, sequence, start, step

kinds = st.lists(
    st.tuples(st.booleans(), st.integers(1, 26), st.integers(1, 9)), min_size=1, max_size=30
)


@settings(deadline=None)
@given(kinds)
def test_offers_are_taken_in_the_order_in_which_they_came(asked):
    """However small those behind are, and with prompts of its own beside them."""
    subject, granted, offered = scheduler(BlockPool(9), batch=4), [], []
    for number, (local, prompt, new) in enumerate(asked):
        owner = f"r{number}"
        if local:
            subject.offer_prompt(local_sequence(owner, prompt, new), 0.0)
        else:
            subject.offer(sequence(owner, prompt, new + 1), 0.0)
            offered.append(owner)
        granted += take(subject)
        step(subject)
    for _ in range(1000):
        granted += take(subject)
        step(subject)
        if not subject.running and not subject.waiting:
            break
    assert granted == offered


def take(subject):
    """Grant and commit; after it the oldest offer waits for a reason."""
    found = [new.owner for new in subject.grant()]
    for owner in found:
        subject.commit(owner)
    return found


@settings(deadline=None)
@given(
    st.integers(1, 32),
    st.lists(st.tuples(st.booleans(), st.integers(1, 6)), min_size=1, max_size=5),
    st.sampled_from([None, 0.0, 3.0]),
)
def test_a_large_request_starves_behind_no_crowd_in_any_mode(length, crowd, window_s):
    """Small ones keep coming, of both kinds; the large one, of nearly all blocks, ends."""
    batching = None if window_s is None else Formed(window_s)
    subject = scheduler(BlockPool(9), batch=4, waiting=12, batching=batching)
    subject.order.learn(1000, 1000.0)
    large = sequence("large", length, 3)
    subject.offer(large, 0.0)
    number, now = 0, 0.0
    while large.output_tokens < 3:
        now += 1.0
        assert now < 2000
        for local, prompt in crowd:
            number += 1
            owner = f"s{number}"
            try:
                if local:
                    subject.offer_prompt(local_sequence(owner, prompt, 3), now)
                else:
                    subject.offer(sequence(owner, prompt, 3), now)
            except Overloaded:
                assert subject.waiting >= 12
        subject.form_batch(now)
        take(subject)
        step(subject)


@settings(deadline=None)
@given(kinds, st.integers(1, 6))
def test_capacity_for_the_oldest_offer_is_never_left_unused(asked, batch):
    subject = scheduler(BlockPool(9), batch=batch)
    waiting = []
    for number, (_, prompt, new) in enumerate(asked):
        one = sequence(f"r{number}", prompt, new + 1)
        subject.offer(one, 0.0)
        waiting.append(one)
        found = take(subject)
        waiting = [other for other in waiting if other.owner not in found]
        if waiting and subject.running < batch and subject.running == subject.streams:
            needed = -(-len(waiting[0].tokens) // BLOCK)
            preempted = subject.waiting > len(waiting)
            assert preempted or not subject.pool.can_allocate(needed + subject.running)
        step(subject)


@settings(deadline=None)
@given(kinds, st.lists(st.tuples(st.integers(1, 20), st.integers(1, 6)), min_size=1, max_size=4))
def test_requests_that_failed_over_go_before_waiting_requests_and_all_end(asked, streaming):
    subject = scheduler(BlockPool(9), batch=4)
    for number, (local, prompt, new) in enumerate(asked):
        owner = f"r{number}"
        if local:
            subject.offer_prompt(local_sequence(owner, prompt, new), 0.0)
        else:
            subject.offer(sequence(owner, prompt, new + 1), 0.0)
    taken = [
        sequence(f"t{number}", prompt, sent + 3) for number, (prompt, sent) in enumerate(streaming)
    ]
    for one in taken:
        subject.take_over(one, 0.0)
    granted = []
    for _ in range(2000):
        found = take(subject)
        if found:
            assert all(one.blocks or ended(one) for one in taken)
        granted += found
        step(subject)
        if not subject.running and not subject.waiting:
            break
    assert all(map(ended, taken))
    assert len(granted) == sum(not local for local, _, _ in asked)
    assert subject.pool.counts().used == 0


@settings(deadline=None)
@given(st.integers(8, 60), st.lists(st.integers(2, 30), min_size=1, max_size=3))
def test_a_long_stream_that_failed_over_is_overtaken_by_no_later_one(length, later):
    """Whatever comes after it, and however short that is."""
    subject = scheduler(BlockPool(10_000), batch=10_000, waiting=10_000, chunk=6)
    long, number = sequence("long", length, 2), 0
    subject.take_over(long, 0.0)
    passes = 0
    while long.remaining > 1 and passes < 20:  # a last token goes into a step
        passes += 1
        subject.complete(subject.schedule_chunk(0.0))
        for tokens in later:
            number += 1
            subject.take_over(sequence(f"l{number}", tokens, 2), 0.0)
    assert passes == -(-(len(long.tokens) - 1) // 6)


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_streams_that_failed_over_together_go_on_shortest_first(lengths):
    subject = scheduler(BlockPool(10_000), chunk=6)
    moved = [sequence(f"m{number}", length, 2) for number, length in enumerate(lengths)]
    for one in moved:
        subject.take_over(one, 0.0)
    went_on = []
    while spans := subject.schedule_chunk(0.0):
        for span in subject.complete(spans):
            if span.sequence.remaining <= 1:
                span.sequence.tokens.append(0)
                went_on.append(span.sequence.prompt_tokens)
                subject.remove(span.sequence.owner)
    assert went_on == sorted(lengths)


def test_a_batch_stream_delays_no_other_stream_that_stands_still():
    subject = scheduler(BlockPool(100), chunk=6)
    subject.take_over(sequence("batch", 20, 4, lane="batch"), 0.0)
    first = subject.schedule_chunk(0.0)
    assert [span.sequence.owner for span in first] == ["batch"] and not subject.recomputing
    subject.take_over(sequence("other", 20, 4), 0.0)
    second = subject.schedule_chunk(0.0)
    assert [span.sequence.owner for span in second] == ["other"] and subject.recomputing
    assert subject.schedule_chunk(0.0) == []


def test_a_stream_that_stands_still_joins_beyond_the_limit_of_slow_steps():
    subject = scheduler(BlockPool(1000), batch=16)
    for number in range(8):
        start(subject, sequence(f"s{number}", 3))
    for _ in range(8):
        subject.batch.stepped(8, 9.0)
    assert subject.batch.limit == 8
    subject.offer(sequence("new", 3), 0.0)
    subject.take_over(sequence("moved", 3), 0.0)
    assert [span.sequence.owner for span in subject.schedule_chunk(0.0)] == ["moved"]
    assert subject.grant() == []


def ended(one):
    """Whether a request has had its last token."""
    return one.output_tokens == one.sampling.max_tokens


@pytest.mark.parametrize("local", [True, False])
def test_the_queue_is_bounded_in_every_mode(local):
    for batching in (None, Formed(), Formed(9.0)):
        subject = scheduler(BlockPool(9), waiting=3, batching=batching)
        subject.pool.allocate("another", 9)
        for number in range(3):
            offer(subject, f"r{number}", local)
        with pytest.raises(Overloaded):
            offer(subject, "one more", local)


def offer(subject, owner, local):
    """One request of either kind."""
    if local:
        subject.offer_prompt(local_sequence(owner, 3), 0.0)
    else:
        subject.offer(sequence(owner, 3), 0.0)
