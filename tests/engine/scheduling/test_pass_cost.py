"""The cost of a pass: its two parts are found, never negative, and monotone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scheduling.pass_cost import PassCost, PassCosts, PassTiming
from engine.scheduling.prompt_order import PendingPrompt, PromptOrder

FULL = 2048
seconds = st.floats(1e-4, 5.0)
passes = st.lists(st.tuples(st.integers(1, FULL), seconds), max_size=40)


def taught(samples: list[tuple[int, float]]) -> PassCost:
    cost = PassCost(FULL)
    for tokens, took_s in samples:
        cost.learn(tokens, took_s)
    return cost


def test_both_parts_are_learned_from_passes_of_any_length():
    chance = random.Random(0)
    lengths = [chance.randint(16, FULL) for _ in range(60)]
    timing = taught([(n, 0.0095 + n * 2e-5) for n in lengths]).timing
    assert timing is not None
    assert timing.pass_s == pytest.approx(0.0095, rel=0.1)
    assert timing.token_s == pytest.approx(2e-5, rel=0.1)


def test_predicted_waits_hold_whatever_the_mix_of_passes_was():
    """Short passes take 6 times as long a token; a queue of long ones waits none the longer."""
    mixed = [(64, 0.0108), (2048, 0.0505)] * 20
    cost = taught([*mixed, *[(64, 0.0108)] * 12])
    waiting = 10 * 544
    truth_s = waiting / FULL * 0.0095 + waiting * 2e-5
    assert cost.wait_s(waiting, FULL) == pytest.approx(truth_s, rel=0.1)


def test_the_present_speed_counts_within_some_passes():
    cost = taught([(FULL, 0.05)] * 50)
    for _ in range(6):
        cost.learn(FULL, 0.1)
    assert cost.seconds(FULL) == pytest.approx(0.1, rel=0.1)


def test_a_warm_up_says_what_the_first_pass_will_take():
    cost = PassCost(FULL)
    assert not cost.known and cost.seconds(64) is None and cost.wait_s(64, FULL) is None
    cost.start_with(PassTiming(0.0095, 2e-5))
    assert cost.seconds(4096) == pytest.approx(0.0914, rel=0.01)
    cost.start_with(PassTiming(1.0, 1.0))
    assert cost.seconds(64) < 0.02


@pytest.mark.parametrize(
    ("short", "long", "found"),
    [
        ((16, 0.01), (2016, 0.05), PassTiming(0.00968, 2e-5)),
        ((16, 0.01), (2016, 0.008), PassTiming(0.01, 1e-9)),
        ((100, 0.001), (200, 0.01), PassTiming(0.0, 9e-5)),
    ],
)
def test_two_passes_give_a_timing_that_is_never_negative(short, long, found):
    timing = PassTiming.of_two(short, long)
    assert (timing.pass_s, timing.token_s) == pytest.approx((found.pass_s, found.token_s))


@given(passes, st.integers(1, FULL), st.integers(0, FULL))
def test_more_tokens_never_take_less_time(samples, tokens, more):
    cost = taught(samples)
    if not samples:
        assert cost.seconds(tokens) is None
        return
    assert 0 < cost.seconds(tokens) <= cost.seconds(tokens + more)
    assert 0 < cost.wait_s(tokens, 64) <= cost.wait_s(tokens + more, 64)
    assert cost.wait_s(tokens, FULL) <= cost.wait_s(tokens, 64)


@given(st.integers(1, FULL), st.integers(0, FULL), st.integers(1, FULL))
def test_a_prompt_in_a_queue_has_no_more_passes_than_one_alone(tokens, more, shared):
    costs = PassCosts(PassTiming(0.01, 1e-5), shared, FULL)
    queued, alone = (costs.passes(tokens, queued=one) for one in (True, False))
    assert 0 < queued <= alone
    assert queued <= costs.passes(tokens + more, queued=True)
    assert alone >= 1


@pytest.mark.parametrize(("shared_cores", "shares"), [(True, 1), (False, 3)])
def test_prompts_share_longer_passes_on_a_device_of_its_own(shared_cores, shares):
    """A pass of 50 ms: too long to share on shared cores, and elsewhere too short to waste."""
    order = PromptOrder(FULL, shared_cores=shared_cores)
    order.learn(FULL, 0.05)
    waiting = [PendingPrompt(f"{n}", "interactive", 1300 // 2, 100.0, n) for n in range(3)]
    found = order.chunk(waiting, 0.0, lambda prompt: prompt.length)
    assert len(found) >= shares and sum(count for _, count in found) <= FULL
    assert order.pass_costs.shared_tokens == (1228 if shared_cores else FULL)
