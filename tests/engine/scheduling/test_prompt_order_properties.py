"""The order of prompts: work is conserved, caps hold, and turns come round between lanes too."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduling.prompt_order import LaneShares, PendingPrompt, PromptOrder, UnderWay
from engine.scheduling.prompt_queue import MOST_PASSES, PromptQueue
from engine.types.lane import LANES
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence

CHUNK = 100

prompts = st.lists(
    st.tuples(st.sampled_from(LANES), st.integers(1, 300), st.floats(0, 20), st.integers(0, 300)),
    min_size=1,
    max_size=12,
)


def dues(drawn):
    return [PendingPrompt(str(n), lane, left, at, n) for n, (lane, left, at, _) in enumerate(drawn)]


@settings(deadline=None)
@given(prompts, st.floats(0, 30), st.none() | st.floats(1e-4, 0.1), st.none() | st.integers(1, 200))
def test_a_prompt_that_can_run_runs_and_no_cap_is_exceeded(drawn, now, token_s, most):
    """`admit` gives some capacity for all of their tokens, some for a part, some for none."""
    subject = PromptOrder(CHUNK)
    if token_s is not None:
        subject.learn(1000, 1000 * token_s)
    capacity = {str(n): min(left, can) for n, (_, left, _, can) in enumerate(drawn)}
    chunk = subject.chunk(dues(drawn), now, lambda due: capacity[due.owner], None, most)
    # Work conserved: with nothing under way there is a pass if anybody can run.
    assert bool(chunk) == any(capacity.values())
    assert sum(count for _, count in chunk) <= min(CHUNK, most or CHUNK)
    assert len({due.owner for due, _ in chunk}) == len(chunk)
    assert len({due.lane for due, _ in chunk}) <= 1
    for due, count in chunk:
        assert 1 <= count <= capacity[due.owner]


@settings(deadline=None)
@given(prompts, st.sampled_from(LANES), st.integers(1, CHUNK))
def test_an_overtaking_prompt_is_of_an_earlier_lane_or_much_shorter(drawn, lane, tokens):
    under_way = UnderWay({"0"}, lane, tokens)
    chunk = PromptOrder(CHUNK).chunk(dues(drawn), 0.0, lambda due: due.length, under_way)
    assert all(due.owner != "0" for due, _ in chunk)
    for due, _ in chunk[:1]:
        earlier = LANES.index(due.lane) < LANES.index(lane)
        assert earlier or (due.lane == lane and due.length < tokens)


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(LANES), st.integers(1, 300), st.integers(1, 300))
def test_no_lane_starves_beside_a_crowd_in_the_others(lane, length, others):
    """A prompt alone in its lane ends within what the shares leave it."""
    shares = LaneShares()
    subject, left, now, spent = PromptOrder(CHUNK, shares), length, 0.0, 0
    subject.learn(1000, 1.0)
    total = sum(getattr(shares, name) for name in LANES)
    bound = (length + 2 * CHUNK) * total / getattr(shares, lane) + len(LANES) * CHUNK
    while left:
        crowd = [
            PendingPrompt(f"{name}{place}", name, others, now + 1, place)
            for name in LANES
            if name != lane
            for place in range(3)
        ]
        found = subject.chunk([PendingPrompt("one", lane, left, 9.0, 99), *crowd], now, _all)
        assert found
        for due, count in found:
            left -= count if due.owner == "one" else 0
            spent += count
            now += count / 1000
        assert spent <= bound


def _all(due):
    return due.length


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("atedn"), st.integers(1, 400), st.sampled_from(LANES)),
        max_size=60,
    )
)
def test_passes_are_bounded_and_a_prompt_is_in_one_at_a_time(steps):
    """Prompts come, passes begin, end, and fail, and prompts go, in any order."""
    turns, here, begun, number = PromptQueue(PromptOrder(CHUNK)), {}, [], 0
    for kind, size, lane in steps:
        if kind == "a":
            number += 1
            one = Sequence(f"r{number}", [0] * size, size, SamplingParams(), lane=lane)
            here[one.owner] = one
            turns.add(one, 0.0)
        elif kind == "t":
            spans = turns.take(0.0, lambda owner: here[owner].remaining)
            turns.begin(spans)
            begun += [spans] if spans else []
        elif kind in "en" and begun:
            spans = begun.pop()
            turns.end(spans, computed=kind == "e")
            for span in spans:
                span.sequence.computed += span.count if kind == "e" else 0
                if not span.sequence.remaining:
                    turns.drop(span.sequence.owner)
                    here.pop(span.sequence.owner, None)
        elif kind == "d" and here:
            owner = sorted(here)[size % len(here)]
            turns.drop(owner)
            del here[owner]
        owners = [span.sequence.owner for spans in begun for span in spans]
        assert len(begun) <= MOST_PASSES
        assert len(owners) == len(set(owners)) and turns.owners == set(owners)
        assert turns.tokens_due == sum(one.remaining for one in here.values())
    while begun:
        turns.end(begun.pop(), computed=False)
    # Work conserved: without passes under way, a waiting prompt runs.
    assert bool(turns.take(0.0, lambda owner: here[owner].remaining)) == bool(here)
