"""A histogram of cancels in words."""

from __future__ import annotations

import math

import pytest

from bench.compare.cancel import CancelFigures, as_series, cancels_in_words
from bench.report.goals import GOALS


@pytest.mark.parametrize(
    ("fast", "within", "p99_ms"), [(98, 100, 250), (99, 99, 100), (10, 50, 500)]
)
def test_the_share_within_the_goal_and_the_bound_of_p99(
    fast: int, within: int, p99_ms: int
) -> None:
    told = cancels_in_words({0.1: fast, 0.25: within, 0.5: 100, math.inf: 100})
    assert told == f"time to cancel: {within} of 100 within 250 ms, p99 at most {p99_ms} ms"


def test_without_cancels_nothing_is_claimed() -> None:
    assert cancels_in_words({0.25: 0, math.inf: 0}) == "no cancel was counted"


def test_a_run_gives_every_figure_that_a_goal_needs():
    machine = {"commit": "c", "date": "2026-01-02"}
    measured = CancelFigures(
        [0.030, 0.034, 0.038], [0.034, 0.034, 0.050], {0.025: 99, 0.25: 100}, [0.05]
    )
    figures = as_series(measured, machine, {"rounds": 3}).figures
    needed = {one.figure for goal in GOALS for one in goal.sources if one.benchmark == "cancel"}
    assert needed <= figures.keys()
    assert figures["behind over alone: TTFT p50"].value == 1.0
    assert figures["cancels: 99 of 100 within"].value == 25
    without = as_series(CancelFigures([0.03], [0.04], {}, []), machine, {}).figures
    assert not any(name.startswith("cancels") for name in without)
