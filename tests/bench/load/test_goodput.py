"""Percentiles, goodput and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.load.arrivals import BURST, CALM, DRAIN, Lengths, burst_phases, poisson
from bench.load.goodput import (
    ALL,
    Budgets,
    Quantiles,
    drained,
    figures,
    in_flight,
    phase_figures,
)
from bench.load.request_outcome import Outcome

_LOAD = poisson(
    burst_phases(1, 10, before_s=10, burst_s=5, drain_s=5, after_s=10), Lengths(), 0, "test"
)
_BUDGETS = Budgets()


def _answered(due, ttft=0.5, itl=0.02, tokens=5, phase=CALM, number=0):
    messages = tuple((due + ttft + itl * position, 1) for position in range(tokens))
    end = messages[-1][0]
    return Outcome(0, number, phase, due, due, end, 100, tokens, 200, tokens, messages)


def _refused(due, named=2.0, phase=BURST):
    return Outcome(0, 0, phase, due, due, due + 0.01, 100, 5, 429, retry_after_s=named)


_ms = st.floats(0, 3)
_outcomes = st.lists(
    st.one_of(
        st.builds(_answered, st.floats(0, 30), _ms, st.floats(0, 0.3), st.integers(1, 6)),
        st.builds(_refused, st.floats(0, 30), phase=st.sampled_from([CALM, BURST, DRAIN])),
        st.builds(lambda due: replace(_answered(due), error="lost"), st.floats(0, 30)),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(_outcomes)
def test_every_request_is_counted_once(outcomes):
    found = figures(_LOAD, outcomes, _BUDGETS).phases
    whole = found[ALL]
    assert whole.requests == len(outcomes)
    assert whole.within_goals + whole.late + whole.refused + whole.failed == whole.requests
    for field in ("requests", "within_goals", "late", "refused", "failed"):
        parts = sum(getattr(found[name], field) for name in (CALM, BURST, DRAIN))
        assert parts == getattr(whole, field)


@settings(deadline=None)
@given(_outcomes, st.floats(1, 5))
def test_wider_budgets_are_never_worse(outcomes, factor):
    wider = Budgets(_BUDGETS.ttft_s * factor, _BUDGETS.itl_s * factor, _BUDGETS.stall_s * factor)
    assert (
        phase_figures(outcomes, wider).within_goals
        >= phase_figures(outcomes, _BUDGETS).within_goals
    )


@pytest.mark.parametrize(
    ("outcome", "within_goals"),
    [
        (_answered(0), True),
        (_answered(0, ttft=1.01), False),
        (_answered(0, itl=0.061), False),
        (_answered(0, tokens=1), True),
        (replace(_answered(0), wanted=9), False),
        (replace(_answered(0), error="cut off"), False),
        (_refused(0), False),
        # 19 tokens at 10 ms and one after 300: the mean is fine, the stall is not
        (replace(_answered(0, itl=0.01, tokens=20), messages=((0.5, 19), (0.8, 1))), False),
    ],
)
def test_a_request_within_its_goals_keeps_all_budgets(outcome, within_goals):
    assert _BUDGETS.kept_by(outcome) is within_goals


def test_percentiles_of_nothing_are_nothing():
    assert Quantiles.of([None]) == Quantiles(0, None, None, None, None)
    assert Quantiles.of([1.0, None, 3.0]).p50 == 2.0


def test_the_drain_ends_with_the_last_that_came_before_the_bursts_end():
    # The burst is from 10 to 15 s; what comes later does not count.
    later = replace(_answered(16, ttft=30), index=1)
    outcomes = [_answered(9, ttft=3), _answered(14, ttft=8, phase=BURST), later]
    assert drained(_LOAD, outcomes) == pytest.approx(22.08)
    # Who came before its end and comes back does.
    back = [_refused(14, named=9.0), _answered(23.01, ttft=1, number=1)]
    assert drained(_LOAD, [*back, later]) == pytest.approx(24.09)
    assert figures(_LOAD, outcomes, _BUDGETS).drain_s == pytest.approx(7.08)
    assert figures(_LOAD, [], _BUDGETS).drain_s == 0.0


def test_refusals_and_returned_requests_are_counted():
    outcomes = [
        _refused(11, named=4.0),
        _refused(12, named=6.0),
        _answered(14, ttft=4.92, phase=BURST),
        _answered(15.01, phase=BURST, number=1),
        _answered(18.01, ttft=2, phase=BURST, number=1),
    ]
    found = figures(_LOAD, outcomes, _BUDGETS)
    refusals = found.refusals
    assert (refusals.count, refusals.returned) == (2, 2)
    assert (refusals.then_answered, refusals.then_within_goals) == (2, 1)
    assert refusals.answer.p50 == pytest.approx(0.01)
    assert refusals.named.p50 == 5.0
    # Somebody waits for a first token from 14 s on: for 1.01 s of 4 s, and for 4.01 s of 6 s.
    assert refusals.over_work.p50 == pytest.approx((4 / 1.01 + 6 / 4.01) / 2)
    # A second try is no second request.
    assert found.phases[ALL].requests == 3


@settings(deadline=None)
@given(_outcomes)
def test_all_that_is_sent_ends(outcomes):
    steps = in_flight(outcomes)
    assert steps[-1][1] == 0
    assert all(count >= 0 for _, count in steps)
    assert [moment for moment, _ in steps[1:]] == sorted(moment for moment, _ in steps[1:])
