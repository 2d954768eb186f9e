"""Runs are kept one by one, and counted over all pieces."""

from __future__ import annotations

from bench.core.results import Results
from bench.report.tables import matrices
from tests.chaos.faults import Fault
from tests.chaos.load import Request, Stream
from tests.chaos.record import Record, RunLog, as_series, by_fault, row
from tests.chaos.run import Outcome


def record(number, fault, *fates, delivered=True, leaked=""):
    streams = [Stream("s", Request("r", "greedy", (1,), {}), resumable=False) for _ in fates]
    for stream, fate in zip(streams, fates, strict=True):
        stream.fate, stream.longest_s = fate, number + 0.5
    return Record.of(Outcome(number, fault, "", False, delivered, 1, streams, leaked, 2.0), "abc")


KILL, CUT = Fault("kill", "decode"), Fault("cut", "link")


def test_an_interrupted_chaos_goes_on_with_what_is_missing(tmp_path):
    path = tmp_path / "more" / "runs.jsonl"
    log = RunLog(path, anew=True)
    for number in (0, 2):
        log.add(record(number, KILL, "exact"))
    again = RunLog(path, anew=False)
    assert again.records == log.records
    assert again.missing(4) == [1, 3]
    assert RunLog(path, anew=True).missing(4) == [0, 1, 2, 3]


def test_figures_are_those_of_all_runs_of_a_fault():
    runs = [
        record(0, KILL, "exact", "tie", "broken"),
        record(1, CUT, "lost", delivered=False, leaked="blocks"),
        record(2, KILL, "exact"),
    ]
    figures = {name: row(some) for name, some in by_fault(runs).items()}
    assert list(figures) == ["cut link", "kill decode", "all"]
    kills, cuts = figures["kill decode"], figures["cut link"]
    assert (kills["runs"], kills["delivered"], kills["streams"], kills["leaks"]) == (2, 2, 4, 0)
    assert (kills["exact"], kills["tie"], kills["broken"]) == (2, 1, 1)
    assert (kills["pause p50"], kills["pause worst"]) == (0.5, 2.5)
    assert (cuts["delivered"], cuts["lost"], cuts["leaks"]) == (0, 1, 1)
    assert figures["all"]["runs"] == 3
    assert [one.bad for one in runs] == [[], ["s over grpc is lost: ", "blocks"], []]


def test_the_table_is_in_the_report():
    machine = {"processor": "AMD EPYC family 25 (avx2)", "date": "2026-01-02"}
    series = as_series("Ray", [record(0, KILL, "exact")], 1, machine)
    about = {"processor": machine["processor"]}
    kept = Results(benchmark="chaos", machine=about, series=tuple(series))
    head, _, first, last, *_ = matrices("chaos", [kept])[0].splitlines()
    assert head.startswith("| AMD Zen 3 | runs | delivered | streams | open | exact |")
    assert first.startswith("| Ray, kill decode | 1 | 1 | 1 | 1 | 1 |")
    assert first.endswith("| 0.50 | 0.50 | 0.50 | 2.00 |")
    assert last.startswith("| Ray, all | 1 |")
