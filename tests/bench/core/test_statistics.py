"""Percentiles, and rates from timestamps."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.statistics import NoOverlap, Spread, percentile, ratio, steady_rate


def test_a_stream_alone_counts_from_its_first_token():
    # 4 tokens arrive in the 2 s after the first.
    assert steady_rate([[(10.0, 1), (10.5, 1), (11.0, 2), (12.0, 1)]]) == 2.0


def test_only_the_time_in_which_all_run_counts():
    early = [(0.0, 1), (1.0, 1), (2.0, 1), (3.0, 1)]
    late = [(1.0, 1), (2.0, 1), (3.0, 1), (4.0, 1), (5.0, 1)]
    # From 1 s, when the second begins, to 3 s, when the first ends: two tokens of each.
    assert steady_rate([early, late]) == 2.0


def test_several_tokens_at_once_are_all_counted():
    assert steady_rate([[(0.0, 5), (2.0, 6)]]) == 3.0


@pytest.mark.parametrize(
    "streams",
    [
        [],
        [[]],
        [[(0.0, 1), (1.0, 1)], []],
        [[(0.0, 1)]],
        [[(0.0, 1), (1.0, 1)], [(2.0, 1), (3.0, 1)]],
    ],
)
def test_without_overlap_there_is_no_rate(streams):
    with pytest.raises(NoOverlap):
        steady_rate(streams)


@given(
    streams=st.integers(1, 8),
    tokens=st.integers(8, 40),
    interval=st.floats(0.001, 1.0),
    lags=st.lists(st.integers(0, 6), min_size=8, max_size=8),
)
def test_steps_of_equal_length_give_their_rate(streams, tokens, interval, lags):
    made = [[((lag + step) * interval, 1) for step in range(tokens)] for lag in lags[:streams]]
    assert steady_rate(made) == pytest.approx(streams / interval)


def test_spread_shows_median_and_range():
    assert Spread((1200.0, 1100.0, 1300.0)).show() == "1,200 [1,100 to 1,300]"
    assert Spread((1.25,)).show(2) == "1.25"
    with pytest.raises(ValueError, match="no measurement"):
        Spread(())


def test_ratio_compares_rounds_that_stood_side_by_side():
    ours = [Spread((90.0, 100.0, 110.0)), Spread((50.0,))]
    theirs = [Spread((50.0,)), Spread((50.0,))]
    assert ratio(ours, theirs).values == (2.0, 1.0)


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1))
def test_percentiles_lie_within_and_the_middle_is_the_median(values, share):
    ordered = sorted(values)
    found = percentile(ordered, share)
    assert ordered[0] - 1e-6 <= found <= ordered[-1] + 1e-6
    assert percentile(ordered, 0.5) == pytest.approx(statistics.median(ordered), abs=1e-6)
