"""The pauses of streams around a fault, and their stages. Pure."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from bench.core.markdown_tables import table
from bench.core.results import Figure, Series, only_measured, value_of
from bench.core.statistics import percentile

STAGES = ("noticed", "assigned", "begun", "first token")
_FIELD = re.compile(r" (\w+)=(\S+)")


@dataclass(frozen=True, slots=True)
class MovedStream:
    """A stream that failed over once: the times (s after the fault) of its stages, and its pause.

    `added_s` is the longest gap from the fault on, less the stream's median gap before the fault.
    It had `done` tokens at the fault.
    """

    done: int
    added_s: float
    stages_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class FaultRun:
    """One run: the streams that moved, the added pauses of the other streams, in seconds.

    `exact` of `streams` streams had the tokens of the undisturbed run.
    """

    moved: tuple[MovedStream, ...]
    others_s: tuple[float, ...]
    exact: int
    streams: int


def added_pause_s(arrivals_s: Sequence[float], fault_s: float) -> float:
    """The longest gap that ends after the fault, less the median gap before it."""
    gaps = [(later, later - earlier) for earlier, later in pairwise(arrivals_s)]
    usual = [gap for end, gap in gaps if end <= fault_s]
    after = [gap for end, gap in gaps if end > fault_s]
    return max(after, default=0.0) - (median(usual) if usual else 0.0)


def logged(
    lines: Sequence[str], message: str, since_s: float
) -> dict[str, tuple[float, dict[str, str]]]:
    """The first line with that message since then, by request: its time and its fields."""
    found: dict[str, tuple[float, dict[str, str]]] = {}
    for line in lines:
        if f" {message} " not in line:
            continue
        stamp = line.partition(" ")[0].replace("Z", "+00:00")
        at_s = datetime.datetime.fromisoformat(stamp).timestamp()
        fields = dict(_FIELD.findall(line))
        if at_s >= since_s and "request_id" in fields:
            found.setdefault(fields["request_id"], (at_s, fields))
    return found


def stages_s(
    request: str,
    logs: Mapping[str, Sequence[str]],
    fault_s: float,
    arrivals_s: Sequence[float],
) -> tuple[float, ...] | None:
    """The stages of a stream that moved, in seconds after the fault; None if it did not move."""
    [router] = (lines for name, lines in logs.items() if name.startswith("router"))
    over = logged(router, "request failed over", fault_s).get(request)
    if over is None:
        return None
    assigned_s, fields = over
    begun = logged(logs[fields["decode"]], "decode waits", fault_s).get(request)
    begun_s = assigned_s if begun is None else begun[0]
    first_s = min((at for at in arrivals_s if at > begun_s), default=begun_s)
    noticed_s = assigned_s - float(fields["waited_s"])
    return tuple(at - fault_s for at in (noticed_s, assigned_s, begun_s, first_s))


def report(runs: Sequence[FaultRun]) -> str:
    """The pauses, and the stages of the streams that moved, as tables in Markdown."""
    moved = [one for run in runs for one in run.moved]
    others = [pause for run in runs for pause in run.others_s]
    rows = [_row("added pause, moved streams", [one.added_s for one in moved])]
    rows += [_row("added pause, other streams", others)]
    for number, stage in enumerate(STAGES):
        rows.append(_row(f"{stage}, after the fault", [one.stages_s[number] for one in moved]))
    exact, streams = sum(run.exact for run in runs), sum(run.streams for run in runs)
    header = ("seconds", "p50", "p99", "longest", "n")
    return f"{table(header, rows)}\n\nexact: {exact} of {streams} streams"


def as_series(
    runs: Sequence[FaultRun],
    name: str,
    machine: Mapping[str, str],
    conditions: dict[str, str | int | float],
) -> Series:
    """The figures of one fault."""
    moved = [one for run in runs for one in run.moved]
    figures: dict[str, Figure | None] = {}
    others = [pause for run in runs for pause in run.others_s]
    kinds = {"moved": [one.added_s for one in moved], "other": others}
    for kind, pauses in kinds.items():
        for point, share in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0)):
            figures[f"added pause, {kind} streams, {point}"] = (
                value_of(percentile(pauses, share), "s", len(pauses), "streams") if pauses else None
            )
    for number, stage in enumerate(STAGES):
        values = [one.stages_s[number] for one in moved]
        figures[f"{stage}, p50"] = (
            value_of(median(values), "s", len(values), "streams") if values else None
        )
    exact, streams = sum(run.exact for run in runs), sum(run.streams for run in runs)
    figures["exact streams"] = value_of(exact / streams, "share", streams, "streams")
    measured = only_measured(figures)
    return Series(
        name=name,
        commit=machine["commit"],
        date=machine["date"],
        conditions=conditions,
        figures=measured,
    )


def _row(name: str, values: Sequence[float]) -> list[str]:
    if not values:
        return [name, "", "", "", "0"]
    points = (percentile(values, share) for share in (0.5, 0.99, 1.0))
    return [name, *(f"{value:.2f}" for value in points), str(len(values))]
