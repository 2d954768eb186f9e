"""The report on what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.core.results import Results, Series, read_all, value_of
from bench.report.goals import AT_LEAST, AT_MOST, BELOW, GOALS, Goal, GoalSource
from bench.report.main import REPORT, main, report
from bench.report.tables import goal_table

ROOT = Path(__file__).parents[3]
ZEN_4 = {"processor": "AMD EPYC family 25 (avx2 avx512f)"}
ZEN_5 = {"processor": "AMD EPYC family 26 (avx2 avx512f)"}


def _results(machine, *series):
    return Results(benchmark="burst", machine=machine, series=series)


def _series(name, value, slow=1.0):
    figures = {"TTFT": value_of(value, "ms", 3, "runs", (value - 100, value + 100))}
    conditions = {"load": "burst", "slow": slow}
    return Series(
        name=name,
        commit="0123456789",
        date="2026-01-02",
        conditions=conditions,
        figures=figures,
    )


GOAL = Goal("TTFT", AT_MOST, 1200, (GoalSource("burst", "TTFT", loads=("burst",)),), in_time=True)


def test_the_kept_report_is_what_the_results_say(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    assert main(["--check"]) == 0, "run `make bench-report`"
    stale = tmp_path / "REPORT.md"
    stale.write_text(REPORT.read_text() + "more")
    monkeypatch.setattr("bench.report.main.REPORT", stale)
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert main(["--check"]) == 0


def test_every_goal_is_compared_with_kept_figures():
    kept = read_all(ROOT / "bench/results")
    of = {(each.benchmark, name) for each in kept for s in each.series for name in s.figures}
    for goal in GOALS:
        assert any((source.benchmark, source.figure) in of for source in goal.sources), goal.title


def test_a_goal_has_a_row_for_each_load_and_a_column_for_each_machine():
    results = [
        _results(ZEN_4, _series("burst, times x 2", 2300.0, 2.0), _series("burst", 1300.0)),
        _results(ZEN_5, _series("burst", 960.0)),
    ]
    lines = goal_table(GOAL, results).splitlines()
    assert lines[4] == "| measured | AMD Zen 5 | AMD Zen 4 |"
    origin = "3 runs<br>0123456, 2026-01-02"
    missed = f"**1,300 [1,200 to 1,400]**<br>{origin}"
    assert lines[6] == f"| burst | 960 [860 to 1,060]<br>{origin} | {missed} |"
    assert lines[7] == f"| burst, times x 2 |  | 2,300 [2,200 to 2,400]<br>{origin} |"


def test_other_loads_do_not_count():
    retry = _series("burst-retry", 960.0)
    retry = retry.model_copy(update={"conditions": {"load": "burst-retry"}})
    assert goal_table(GOAL, [_results(ZEN_5, retry)]) == ""


@pytest.mark.parametrize(
    ("bound", "met", "missed"),
    [(AT_LEAST, (2.0, 3.0), (1.9,)), (AT_MOST, (2.0, 1.0), (2.1,)), (BELOW, (1.9,), (2.0, 2.1))],
)
def test_a_bound_is_kept_on_its_side(bound, met, missed):
    goal = Goal("x", bound, 2.0, ())
    assert all(goal.is_met(value, 1.0) for value in met)
    assert not any(goal.is_met(value, 1.0) for value in missed)


def test_claims_without_a_measurement_are_left_out():
    figures = {"batch": value_of(8.0, "x", 3, "repeats", (7.0, 9.0))}
    series = Series(name="claims", commit="c", date="2026-01-02", conditions={}, figures=figures)
    text = report([Results(benchmark="claims", machine=ZEN_5, series=(series,))])
    rows = [line for line in text.splitlines() if "make bench-claims ARGS" in line]
    measured = [line for line in rows if "not measured yet" not in line]
    assert len(measured) == 1
    assert "| 8.00 [7.00 to 9.00] x, 3 repeats |" in measured[0]
