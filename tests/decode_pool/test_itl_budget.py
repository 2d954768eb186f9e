"""How long a slice may be: by example and by property."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decode_pool.itl_budget import ItlBudget
from engine.types.urgency import Urgency

URGENCIES = (Urgency.PROMPTS, Urgency.PRESSED, Urgency.URGENT)
steps_s = st.lists(st.floats(1e-4, 0.5), min_size=1)
factors = st.none() | st.floats(1.0, 5.0)


def after(steps, budget_s=0.06, factor=2.0):
    itl = ItlBudget(budget_s, factor)
    for step_s in steps:
        itl.stepped(step_s)
    return itl


def test_a_slice_lasts_as_long_as_an_undisturbed_step_at_most():
    assert after([0.012] * 3).slice_s() == pytest.approx(0.012)


@pytest.mark.parametrize(("step_s", "factor"), [(0.032, 2.0), (0.012, None)])
def test_step_and_slice_leave_some_of_the_budget(step_s, factor):
    """All of it would leave nothing for what else delays a token."""
    slice_s = after([step_s], factor=factor).slice_s()
    assert 0 < slice_s < 0.06 - step_s


def test_a_slice_beside_a_long_step_is_half_of_what_the_budget_leaves():
    assert after([0.05]).slice_s() == pytest.approx(0.005)
    assert after([0.05]).slice_s(Urgency.URGENT) == pytest.approx(0.01)


def test_one_slow_step_brings_no_long_slice():
    assert after([0.012] * 5 + [0.05]).slice_s() == 0.0
    assert after([0.012] * 5 + [0.05, 0.012]).slice_s() == pytest.approx(0.012)


def test_where_an_undisturbed_step_is_known_it_counts_until_it_is_not():
    itl = after([0.012] * 3)
    for _ in range(20):
        itl.stepped(0.025, undisturbed_s=0.012)
    assert itl.itl_s() == pytest.approx(2 * 0.012)
    assert itl.step_s == pytest.approx(0.025)
    itl.stepped(0.025)
    assert itl.itl_s() == pytest.approx(2 * 0.025)


def test_with_no_stream_a_slice_is_longer_but_within_the_budget():
    itl = after([0.012])
    before_s = itl.slice_s()
    itl.idle()
    assert before_s < itl.slice_s() <= 0.06
    assert itl.step_s == pytest.approx(0.012)


@given(steps_s, st.floats(1e-3, 0.2), factors)
def test_step_and_slice_keep_the_itl_where_the_step_leaves_it(steps, budget_s, factor):
    itl = after(steps, budget_s, factor)
    assert itl.slice_s() >= 0
    assert itl.itl_s() <= budget_s
    if factor is not None:
        assert itl.itl_s() <= factor * max(steps)
    if steps[-1] <= budget_s:
        for urgency in URGENCIES:
            within_s = max(steps[-1], itl.itl_s(urgency))
            assert steps[-1] + itl.slice_s(urgency) <= within_s + 1e-9


def test_urgent_prompts_have_the_whole_budget():
    assert after([0.012] * 3).slice_s(Urgency.URGENT) == pytest.approx(0.048)
    assert after([0.08]).slice_s(Urgency.URGENT) == 0.0


def test_beside_pressed_prompts_streams_wait_longer_within_the_budget():
    itl = after([0.01] * 3)
    assert itl.itl_s() < itl.itl_s(Urgency.PRESSED) < 0.06
    assert itl.slice_s(Urgency.PRESSED) == pytest.approx(itl.itl_s(Urgency.PRESSED) - 0.01)
    assert after([0.01], factor=None).itl_s(Urgency.PRESSED) == 0.06


@given(steps_s, factors)
def test_more_urgency_is_never_a_shorter_slice(steps, factor):
    itl = after(steps, factor=factor)
    slices = [itl.slice_s(urgency) for urgency in URGENCIES]
    assert slices == sorted(slices)
