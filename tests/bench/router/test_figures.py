"""Figures of one router that are kept."""

from __future__ import annotations

from bench.report.goals import GOALS
from bench.router.figures import FirstTokenRow, Percentiles, Throughput, as_series

MACHINE = {"commit": "c", "date": "2026-01-02"}


def test_a_run_gives_every_figure_that_a_goal_needs():
    throughput = [
        Throughput(front_end, tokens, 9000.0, 9000.0 * tokens, 0.03, 0.02, 0.01)
        for front_end in ("grpc", "http")
        for tokens in (1, 24)
    ]
    routed, direct, hop = Percentiles(7.5, 11.0), Percentiles(6.5, 10.0), Percentiles(1.5, 2.0)
    first = [
        FirstTokenRow(front_end, 500, 2000.0, 140, routed, direct, hop)
        for front_end in ("grpc", "http")
    ]
    series = as_series(throughput, first, MACHINE, {"seconds": 4})
    needed = {one.figure for goal in GOALS for one in goal.sources if one.benchmark == "router"}
    assert needed <= series.figures.keys()
    added = series.figures["gRPC, 500 streams open: added to TTFT p50"]
    assert (added.value, added.n, added.of) == (1.0, 140, "requests")
    assert series.figures["HTTP, 24 tokens a message: tokens"].value == 216_000
