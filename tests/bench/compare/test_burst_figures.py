"""Figures of loads that are kept."""

from __future__ import annotations

import pytest

from bench.compare.burst_figures import as_series
from bench.compare.burst_measurement import Measured
from bench.compare.burst_report import ITL
from bench.load.arrivals import BURST, CALM, DRAIN
from bench.load.goodput import ALL
from bench.systems.contenders import LONG, POOLS, RUNNING, SINGLE, VLLM, VLLM_SMALL


def _run(system, seed, within, in_burst=0, ttft=0.5, itl=0.02, **more):
    counts = {
        ALL: {"requests": 120, "within_goals": within, "refused": 3, "failed": 0},
        CALM: {"requests": 58, "within_goals": within - in_burst},
        BURST: {"requests": 54, "within_goals": in_burst},
        DRAIN: {"requests": 8, "within_goals": 0},
        "returned": {"requests": 4, "answered": 4, "within_goals": 3},
    }
    values = {f"ttft {CALM}": [0.5], f"ttft {BURST}": [ttft], f"itl {ALL}": [itl], "drain": [2.5]}
    return Measured(
        *(system, 1, "burst", seed, counts, values),
        about="a load",
        at=f"2026-01-0{seed} 03:04",
        commit=f"c{seed}",
        **more,
    )


RUNS = [
    _run(VLLM, 1, 60),
    _run(VLLM_SMALL, 1, 40),
    _run(SINGLE, 1, 70, 12, itl=0.04),
    _run(POOLS, 1, 90, 30, 0.9),
    _run(VLLM, 2, 50),
    _run(SINGLE, 2, 84, 14, itl=0.04),
    _run(POOLS, 2, 84, 20, 1.1, itl=0.03),
    Measured(SINGLE, 2, "burst", 1, error="NotReady: no answer"),
]


def _value(series, name):
    return series.figures[name].value


def test_counts_of_runs_have_their_range():
    figures = as_series(RUNS, "burst").figures
    within = figures["pools: within goals, burst"]
    assert (within.value, within.low, within.high, within.n) == (25, 20, 30, 2)
    assert figures["single: within goals"].n == 2
    assert figures["vllm: requests"].value == 120


def test_percentiles_are_of_all_runs_together_with_the_range_of_the_runs_own():
    series = as_series(RUNS, "burst")
    ttft = series.figures["pools: TTFT p99, burst"]
    assert (ttft.value, ttft.low, ttft.high, ttft.n) == (pytest.approx(1098), 900, 1100, 2)
    assert _value(series, "pools: TTFT p99, burst over calm") == pytest.approx(2.196)
    assert series.figures["pools: drain"].of == "runs"


def test_ratios_are_of_pairs_and_the_best_peer_counts():
    series = as_series(RUNS, "burst")
    goodput = series.figures["pools over vllm: goodput"]
    assert (goodput.low, goodput.high, goodput.n) == (1.5, 1.68, 2)
    assert _value(series, "pools over the best peer: goodput") == goodput.value
    itl = series.figures["pools over single: ITL p95"]
    assert (itl.low, itl.high) == (0.5, 0.75)


def test_returned_requests_are_counted():
    share = as_series(RUNS, "burst").figures["pools: returned, then within goals"]
    assert (share.value, share.n) == (0.75, 8)


def test_a_series_is_named_by_its_load_and_its_conditions():
    series = as_series(RUNS, "burst")
    assert (series.name, series.commit, series.date) == ("burst", "c1, c2", "2026-01-02")
    assert series.conditions["seeds"] == "1, 2"
    slowed = as_series([_run(POOLS, 1, 9, slow=4.0)], "burst")
    assert (slowed.name, slowed.slow) == ("burst, times x 4", 4.0)
    shrunk = as_series([_run(POOLS, 1, 9, shrink=2.0)], "burst")
    assert shrunk.name == "burst, lengths / 2"


def test_itl_beside_long_prompts_is_compared_with_itl_before_them():
    counts = {RUNNING: {"requests": 4, "failed": 0}, LONG: {"requests": 4, "failed": 1}}
    values = {"before": [0.01, 0.01], "during": [0.015, 0.02], "ttft": [1.0, 2.0]}
    run = Measured(POOLS, 1, ITL, 1, counts, values, about="a load", at="2026-01-02 03:04")
    series = as_series([run], ITL)
    assert _value(series, "pools: ITL p95, during over before") == pytest.approx(1.975)
    assert series.figures["pools: ITL p95 during"].n == 2
    assert _value(series, "pools: TTFT p50, long prompts") == 1500
    served = series.figures["pools: long prompts served"]
    assert (served.value, served.n) == (3, 4)
