"""Two modes by turns on the windows of one load."""

from __future__ import annotations

from bench.compare.interleaved_ab import cut, turns
from bench.compare.interleaved_figures import PairedOutcome, as_series
from bench.core.results import RESAMPLED
from bench.core.statistics import between
from bench.load.arrivals import Arrival, Load
from bench.systems.contenders import POOLS, SINGLE

LOAD = Load(
    "a load",
    1,
    tuple(Arrival(at_s, "trace", 10, 4) for at_s in (0.0, 1.0, 29.9, 30.0, 95.0)),
    (("trace", 0.0, 100.0),),
)


def test_windows_have_every_request_once_and_begin_with_their_own_time():
    windows = cut(LOAD, 30.0)
    assert [window.indices for window in windows] == [(0, 1, 2), (3,), (4,)]
    begins = [window.load.arrivals[0].at_s for window in windows]
    assert [round(at_s, 6) for at_s in begins] == [0.3, 0.3, 5.3]


def test_both_play_each_window_and_begin_by_turns():
    order = [(number, window.indices[0], name) for number, window, name in turns(2, cut(LOAD, 30))]
    assert order[:4] == [(1, 0, POOLS), (1, 0, SINGLE), (1, 3, SINGLE), (1, 3, POOLS)]
    assert len(order) == len(set(order)) == 2 * 2 * 3


def outcome(system, index, within_goals, itl_s):
    return PairedOutcome(1, system, index, within_goals, False, 0.1, itl_s)


def series(outcomes):
    return as_series("a load", outcomes, {"load": "a load"}, "c", "2026-01-02")


def test_a_request_is_compared_with_itself_in_both_modes():
    figures = series(
        [
            *(outcome(POOLS, index, True, 0.010) for index in range(3)),
            *(outcome(SINGLE, index, index > 0, 0.012) for index in range(3)),
            outcome(POOLS, 3, False, None),
            outcome(SINGLE, 3, True, 0.020),
        ]
    ).figures
    less = figures["pools less single: ITL of a request, p50"]
    assert (less.value, less.low, less.high, less.n) == (-2.0, -2.0, -2.0, 3)
    assert less.interval == RESAMPLED
    assert figures["pools less single: share of smaller ITL"].value == 1.0
    assert figures["pools alone: within goals"].value == 1
    assert figures["single alone: within goals"].value == 1
    assert figures["pools over single: goodput"].value == 1.0


def test_without_a_request_in_both_modes_there_is_no_difference():
    figures = series([outcome(POOLS, 0, False, None), outcome(SINGLE, 0, True, 0.012)]).figures
    assert "pools less single: ITL of a request, p50" not in figures
    assert "pools over single: ITL p95" not in figures
    assert figures["single alone: within goals"].value == 1


def test_ratios_are_taken_round_by_round():
    outcomes = [
        PairedOutcome(number, system, index, True, False, 0.1, itl_s)
        for number, system, count, itl_s in (
            (1, POOLS, 3, 0.010),
            (1, SINGLE, 2, 0.020),
            (2, POOLS, 2, 0.030),
            (2, SINGLE, 2, 0.030),
        )
        for index in range(count)
    ]
    figures = series(outcomes).figures
    goodput, itl = (figures[f"pools over single: {what}"] for what in ("goodput", "ITL p95"))
    assert (goodput.low, goodput.high, goodput.n) == (1.0, 1.5, 2)
    assert (itl.low, itl.high) == (0.5, 1.0)


def test_medians_of_values_drawn_anew_lie_about_theirs():
    low, high = between([float(value) for value in range(101)])
    assert 30 < low < 50 < high < 70
