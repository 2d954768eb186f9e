"""How long a slice may be: by example and by property."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decode_pool.gap import ItlBudget
from engine.types.urgency import Urgency


def after(steps, budget_s=0.06, factor=2.0):
    gap = ItlBudget(budget_s, factor)
    for step_s in steps:
        gap.stepped(step_s)
    return gap


def test_a_slice_lasts_as_long_as_an_undisturbed_step_at_most():
    assert after([0.012] * 3).slice_s() == pytest.approx(0.012)


def test_most_of_the_budget_counts_where_it_is_less_or_alone():
    """All of it would leave nothing for what else delays a token."""
    assert after([0.032]).slice_s() == pytest.approx(0.8 * 0.06 - 0.032)
    assert after([0.012], factor=None).slice_s() == pytest.approx(0.8 * 0.06 - 0.012)


def test_a_slice_beside_a_long_step_is_half_of_what_the_budget_leaves():
    assert after([0.05]).slice_s() == pytest.approx(0.005)
    assert after([0.05]).slice_s(Urgency.URGENT) == pytest.approx(0.01)


def test_one_slow_step_brings_no_long_slice():
    assert after([0.012] * 5 + [0.05]).slice_s() == 0.0
    assert after([0.012] * 5 + [0.05, 0.012]).slice_s() == pytest.approx(0.012)


def test_a_step_that_shared_its_cores_makes_no_gap_longer():
    gap = after([0.012] * 3)
    for _ in range(20):
        gap.stepped(0.025, disturbed=True)
    assert gap.itl_s() == pytest.approx(2 * 0.012)
    assert gap.step_s == pytest.approx(0.025)
    assert gap.rest_s(0.025) == 0.0


def test_where_all_steps_have_long_shared_their_cores_those_count():
    gap = after([])
    gap.stepped(0.025, disturbed=True)
    assert gap.itl_s() == pytest.approx(2 * 0.025)
    gap = after([0.012] * 9)
    for _ in range(500):
        gap.stepped(0.025, disturbed=True)
    assert gap.itl_s() == pytest.approx(2 * 0.025)
    gap.stepped(0.012)
    assert gap.itl_s() == pytest.approx(2 * 0.012)


@pytest.mark.parametrize(
    ("step_s", "tokens", "bears"),
    [
        (0.012, 7, False),  # a rest of 46.8 ms, 13.2 ms of each budget to spare
        (0.012, 8, True),
        (0.045, 6, False),  # of 46.5 ms, with 13.5 to spare
        (0.045, 7, True),
    ],
)
def test_a_stream_bears_a_rest_that_its_tokens_make_up_for(step_s, tokens, bears):
    assert after([step_s]).bears_rest(tokens) == bears


@given(st.floats(1e-4, 0.2), st.integers(1, 100), st.floats(1e-3, 0.2))
def test_who_bears_a_rest_keeps_its_budget(step_s, tokens, budget_s):
    """Even where it joins as a step begins, an interval behind the token that prefill gave."""
    gap = after([step_s], budget_s)
    interval_s = step_s + gap.rest_s(step_s, Urgency.URGENT)
    ends_s = [interval_s * n + step_s for n in range(1, tokens + 1)]
    if gap.bears_rest(tokens):
        assert interval_s + ends_s[-1] <= tokens * budget_s * (1 + 1e-9)
        assert gap.bears_rest(tokens + 1)


def test_with_no_stream_a_slice_is_short_enough_to_look_for_others():
    gap = after([0.012])
    gap.rested()
    assert gap.slice_s() == pytest.approx(0.02)
    assert gap.step_s == pytest.approx(0.012)


@given(
    st.lists(st.floats(1e-4, 0.5), min_size=1),
    st.floats(1e-3, 0.2),
    st.none() | st.floats(1.0, 5.0),
)
def test_step_and_slice_keep_the_gap_where_the_step_leaves_it(steps, budget_s, factor):
    gap = after(steps, budget_s, factor)
    assert gap.slice_s() >= 0
    assert gap.itl_s() <= budget_s
    if factor is not None:
        assert gap.itl_s() <= factor * max(steps)
    if steps[-1] <= budget_s:
        spared_s = max(0.8 * budget_s, (budget_s + steps[-1]) / 2)
        most_s = max(steps[-1], min(gap.itl_s(), spared_s))
        assert steps[-1] + gap.slice_s() == pytest.approx(most_s)


def test_urgent_prompts_have_the_whole_budget():
    assert after([0.012] * 3).slice_s(Urgency.URGENT) == pytest.approx(0.048)
    assert after([0.08]).slice_s(Urgency.URGENT) == 0.0


def test_beside_pressed_prompts_streams_have_half_as_much_again_of_a_gap():
    gap = after([0.01] * 3)
    assert (gap.itl_s(), gap.itl_s(Urgency.PRESSED)) == pytest.approx((0.02, 0.03))
    assert gap.slice_s(Urgency.PRESSED) == pytest.approx(0.03 - 0.01)
    assert after([0.03]).slice_s(Urgency.PRESSED) == after([0.03]).slice_s() == pytest.approx(0.018)
    assert after([0.01], factor=None).itl_s(Urgency.PRESSED) == 0.06


def test_a_rest_leaves_the_pace_of_a_step():
    gap = after([0.012] * 3)
    assert gap.rest_s(0.012) == pytest.approx(0.7 * 0.024 - 0.012)
    assert gap.rest_s(0.012, Urgency.PRESSED) == pytest.approx(0.7 * 1.5 * 0.024 - 0.012)
    assert after([0.03]).rest_s(0.03, Urgency.PRESSED) == pytest.approx(0.65 * 0.06 - 0.03)
    assert gap.rest_s(0.012, Urgency.URGENT) == pytest.approx(0.78 * 0.06 - 0.012)
    assert after([0.045] * 3).rest_s(0.045, Urgency.URGENT) == pytest.approx(0.06 - 1.3 * 0.045)
    assert after([0.08] * 3).rest_s(0.03, Urgency.URGENT) == pytest.approx(0.65 * 0.06 - 0.03)
    assert gap.rest_s(0.1) == gap.rest_s(0.1, Urgency.URGENT) == 0.0


def test_pressed_prompts_have_a_part_of_the_time_between_steps_that_share_their_cores():
    """Steps of 12 ms that take twice that beside prompts, or nearly all that streams may wait."""
    for step_s, pace_s in ((0.024, 0.032), (0.035, 0.036)):
        gap = after([0.012] * 3)
        for _ in range(9):
            gap.stepped(step_s, disturbed=True)
        assert gap.rest_s(step_s, Urgency.PRESSED) == pytest.approx(pace_s - step_s)
        assert gap.rest_s(step_s) == 0.0


@given(st.lists(st.floats(1e-4, 0.5), min_size=1), st.floats(0, 1), st.none() | st.floats(1.0, 5.0))
def test_more_urgency_is_never_less_of_a_rest_nor_of_a_slice(steps, since_s, factor):
    gap = after(steps, factor=factor)
    hastes = (Urgency.PROMPTS, Urgency.PRESSED, Urgency.URGENT)
    rests, slices = zip(*((gap.rest_s(since_s, h), gap.slice_s(h)) for h in hastes), strict=True)
    assert list(rests) == sorted(rests)
    assert list(slices) == sorted(slices)


@given(st.lists(st.floats(1e-4, 0.5), min_size=1), st.floats(0, 1), st.sampled_from(Urgency))
def test_a_rest_never_breaks_the_budget(steps, since_s, urgency):
    gap = after(steps)
    rest_s = gap.rest_s(since_s, urgency)
    assert rest_s == 0 or since_s + rest_s < 0.06
