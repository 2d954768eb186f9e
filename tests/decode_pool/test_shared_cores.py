"""When the next step begins beside other engines' prompts: by example and by property."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decode_pool.itl_budget import ItlBudget
from decode_pool.shared_cores import StepInterval
from engine.types.urgency import Urgency

BUDGET_S = 0.06
URGENCIES = (Urgency.PROMPTS, Urgency.PRESSED, Urgency.URGENT)
steps_s = st.lists(st.floats(1e-4, 0.5), min_size=1)
factors = st.none() | st.floats(1.0, 5.0)


class Steps:
    """A budget and its step interval, told of steps as the loop tells them."""

    def __init__(self, steps=(), budget_s=BUDGET_S, factor=2.0):
        self.itl = ItlBudget(budget_s, factor)
        self.interval = StepInterval(self.itl)
        self.take(*steps)

    def take(self, *steps, disturbed=False):
        for step_s in steps:
            self.itl.stepped(step_s, self.interval.stepped(step_s, disturbed=disturbed))


def test_a_step_that_shared_its_cores_makes_no_wait_longer():
    steps = Steps([0.012] * 3)
    steps.take(*[0.025] * 20, disturbed=True)
    assert steps.itl.itl_s() == pytest.approx(2 * 0.012)
    assert steps.itl.step_s == pytest.approx(0.025)
    assert steps.interval.wait_s(0.025) == 0.0


def test_after_a_long_time_of_disturbed_steps_the_disturbed_steps_count():
    steps = Steps()
    steps.take(0.025, disturbed=True)
    assert steps.itl.itl_s() == pytest.approx(2 * 0.025)
    steps = Steps([0.012] * 9)
    steps.take(*[0.025] * 5000, disturbed=True)
    assert steps.itl.itl_s() == pytest.approx(2 * 0.025)
    steps.take(0.02)
    assert steps.itl.itl_s() == pytest.approx(2 * 0.02)


@given(st.floats(1e-4, 0.2), st.integers(1, 100), st.floats(1e-3, 0.2))
def test_a_stream_that_may_wait_keeps_its_budget(step_s, tokens, budget_s):
    """Even where it joins as a step begins, an interval behind the token that prefill gave."""
    interval = Steps([step_s], budget_s).interval
    interval_s = step_s + interval.wait_s(step_s, Urgency.URGENT)
    ends_s = [interval_s * n + step_s for n in range(1, tokens + 1)]
    if interval.may_wait(tokens):
        assert interval_s + ends_s[-1] <= tokens * budget_s * (1 + 1e-9)
        assert interval.may_wait(tokens + 1)


@pytest.mark.parametrize("step_s", [0.012, 0.045])
def test_a_stream_with_few_tokens_to_come_does_not_wait(step_s):
    interval = Steps([step_s]).interval
    assert not interval.may_wait(1)
    assert interval.may_wait(100)


def test_nothing_waits_for_other_engines_that_compute_no_prompts():
    assert Steps([0.012] * 3).interval.wait_s(0.0, Urgency.NONE) == 0.0


def test_a_step_that_began_long_ago_is_followed_at_once():
    for urgency in URGENCIES:
        assert Steps([0.012] * 3).interval.wait_s(0.1, urgency) == 0.0


def test_pressed_prompts_have_a_part_of_an_interval_whose_step_shares_their_cores():
    """Steps of 12 ms that take twice that beside prompts, or nearly all that streams may wait."""
    for step_s in (0.024, 0.035):
        steps = Steps([0.012] * 3)
        steps.take(*[step_s] * 9, disturbed=True)
        interval_s = step_s + steps.interval.wait_s(step_s, Urgency.PRESSED)
        assert step_s < interval_s <= steps.itl.itl_s(Urgency.PRESSED) + 1e-9
        assert steps.interval.wait_s(step_s) == 0.0


@given(steps_s, st.floats(0, 1), factors)
def test_more_urgency_is_never_a_shorter_wait(steps, since_s, factor):
    interval = Steps(steps, factor=factor).interval
    waits = [interval.wait_s(since_s, urgency) for urgency in URGENCIES]
    assert waits == sorted(waits)


@given(steps_s, st.floats(0, 1), st.sampled_from(Urgency))
def test_a_wait_never_breaks_the_budget(steps, since_s, urgency):
    wait_s = Steps(steps).interval.wait_s(since_s, urgency)
    assert wait_s == 0 or since_s + wait_s < BUDGET_S


@given(steps_s, factors, st.sampled_from(URGENCIES[:2]))
def test_a_wait_leaves_streams_the_itl_that_they_have(steps, factor, urgency):
    subject = Steps(steps, factor=factor)
    since_s = steps[-1]
    wait_s = subject.interval.wait_s(since_s, urgency)
    assert wait_s == 0 or since_s + wait_s <= subject.itl.itl_s(urgency) + 1e-9
