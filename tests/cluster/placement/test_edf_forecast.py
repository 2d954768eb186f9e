"""The forecast of one more prompt: no prompt is made late, and more work never ends sooner."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.placement.edf_forecast import EdfPrompt, forecast_prompt
from engine.scheduling.edf import most_on_time

dues = st.builds(EdfPrompt, st.floats(0.001, 1.0), st.floats(0.1, 4.0))


def test_a_short_one_passes_long_ones_that_can_wait():
    waiting = [EdfPrompt(0.5, 2.0), EdfPrompt(0.6, 3.0)]
    found = forecast_prompt(waiting, EdfPrompt(0.1, 1.0), 0.0, 0.0)
    assert (found.feasible, found.behind) == (True, 2)
    assert found.ends_s == pytest.approx(0.1)


def test_it_does_not_pass_where_another_would_be_late_for_it():
    assert not forecast_prompt([EdfPrompt(0.95, 1.0)], EdfPrompt(0.1, 0.5), 0.0, 0.0).feasible
    behind = forecast_prompt([EdfPrompt(0.95, 1.0)], EdfPrompt(0.1, 1.1), 0.0, 0.0)
    assert behind.feasible and behind.ends_s == pytest.approx(1.05)
    assert not forecast_prompt(
        [EdfPrompt(0.95, 1.0)], EdfPrompt(0.1, 1.1), 0.0, 0.0, margin_s=0.1
    ).feasible


def test_prompts_that_will_be_late_anyway_are_passed():
    assert forecast_prompt([EdfPrompt(5.0, 1.0)], EdfPrompt(0.1, 0.5), 0.0, 0.0).feasible


def test_the_work_of_others_comes_first():
    found = forecast_prompt([], EdfPrompt(0.2, 1.0), 0.5, 10.0 - 9.5)
    assert found.ends_s == pytest.approx(1.2) and not found.feasible


@given(st.lists(dues, max_size=12), dues, st.floats(0, 1))
def test_a_feasible_prompt_makes_no_other_late(waiting, new, lead_s):
    found = forecast_prompt(waiting, new, lead_s, 0.0)
    if found.feasible:
        assert found.ends_s <= new.deadline_s + 1e-9
        before, after = most_on_time(waiting, lead_s), most_on_time([*waiting, new], lead_s)
        assert len(after) == len(before) + 1
    assert found.ends_s >= lead_s + new.length - 1e-9


@given(st.lists(dues, max_size=12), dues, st.floats(0, 1), st.floats(0, 1))
def test_more_work_ahead_is_never_better(waiting, new, lead_s, more):
    less, later = (forecast_prompt(waiting, new, lead, 0.0) for lead in (lead_s, lead_s + more))
    assert later.work_s >= less.work_s
    assert later.ends_s >= lead_s + more + new.length - 1e-9
