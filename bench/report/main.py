"""`make bench-report`: write `bench/REPORT.md` from `bench/results/`; `--check` only compares."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.core.results import RESULTS, Results, read_all
from bench.report.goals import GOALS
from bench.report.tables import claims, details, goal_table, machines, matrices

REPORT = Path("bench/REPORT.md")
_ABOUT = """\
# What was measured

`make bench-report` writes this page from the files of `bench/results/`; do not edit it.
[README.md](README.md) says how each comparison is run and what a figure means.

A cell has the median with the range of its repeats in brackets, or the 95 % interval of medians of
resampled values where it says so; below it stands from how many samples it was taken, at which
commit, and on which day. Percentiles are of all runs together, and their range is over the runs'
own percentiles. A figure that misses its goal is bold, and an empty cell was not measured.
*Times x 2* marks a load in slow motion: all its times and budgets are twice as long."""

# The most important figures of loads; the files have more.
_OF_LOADS = (
    *(": requests", ": within goals", ": refused"),
    *(f"{what}, burst" for what in ("TTFT p50", "TTFT p99", "ITL p50", "ITL p95")),
    *(f"{what}, all" for what in ("TTFT p50", "TTFT p99", "ITL p50", "ITL p95", "ITL mean")),
    "ITL of a request, p50",
)
_SECTIONS = (
    ("Bursts", "burst", _OF_LOADS),
    ("Traces", "traces", _OF_LOADS),
    ("Both modes by turns", "interleaved", _OF_LOADS),
    ("Inter-token latency beside long prompts", "itl", ()),
    ("The engine against the machine's limits", "engine", ()),
    ("Guided answers", "guided", ()),
    ("JSON schemas that compile", "schemas", ()),
    ("The host's work for a decode step", "host", ()),
    ("Beside peers", "peers", ()),
    ("One router", "router", ()),
    ("Cancels", "cancel", ()),
    ("Five times the capacity", "overload", ()),
    ("Open streams on one router", "streams", ()),
    ("What a refusal costs", "refusals", ()),
    ("Moving KV", "transfer", ()),
    ("Ten minutes at the edge of the KV pool", "soak", ()),
    ("One GPU", "gpu", ()),
    ("A cluster on one GPU", "cluster", ()),
)


def report(results: Sequence[Results]) -> str:
    """The whole page."""
    parts = [_ABOUT, machines(results), "## Goals"]
    parts += filter(None, (goal_table(goal, results) for goal in GOALS))
    parts += ["## Claims about serving", claims(results)]
    for title, benchmark, endings in _SECTIONS:
        if tables := details(benchmark, results, endings):
            parts += [f"## {title}", *tables]
    if tables := matrices("chaos", results):
        parts += ["## Chaos", *tables]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; with `--check` return 1 if the page differs from the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args(arguments)
    text = report(read_all(RESULTS))
    if not options.check:
        REPORT.write_text(text)
        return 0
    if REPORT.is_file() and REPORT.read_text() == text:
        return 0
    print(f"{REPORT} is stale: run `make bench-report`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
