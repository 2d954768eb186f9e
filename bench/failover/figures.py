"""The pauses of streams around a fault, and their stages. Pure."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from bench.core.markdown_tables import table
from bench.core.results import Figure, Series, series_of, value_of
from bench.core.statistics import percentile

# The router notices the fault and assigns the stream, whose call begins at another replica. That
# replica gives it blocks and computes it up to the next token.
STAGES = ("noticed", "assigned", "begun", "admitted", "next token")
_POINTS = {"p50": 0.5, "p99": 0.99, "longest": 1.0}
# Times in logs are rounded.
_CLOCK_S = 0.01
_FIELD = re.compile(r" (\w+)=(\S+)")


@dataclass(frozen=True, slots=True)
class FaultedStream:
    """A stream during a fault.

    `added_s` is the longest gap from the fault on, less the stream's median gap before the fault.
    An `exact` stream has the tokens of the undisturbed run. `stages_s` are the times of its stages
    in seconds after the fault; None if it did not move.
    """

    added_s: float
    exact: bool
    stages_s: tuple[float, ...] | None = None


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
    noticed_s = assigned_s - float(fields["waited_s"])
    decode = logs[fields["decode"]]
    begun_s = _time_of(decode, "decode waits", request, assigned_s)
    admitted_s = _time_of(decode, "stream resumes here", request, begun_s)
    next_s = min((at for at in arrivals_s if at > admitted_s), default=admitted_s)
    return tuple(at - fault_s for at in (noticed_s, assigned_s, begun_s, admitted_s, next_s))


def _time_of(lines: Sequence[str], message: str, request: str, before_s: float) -> float:
    """When a request reached the state of that message; `before_s` where no line tells."""
    found = logged(lines, message, before_s - _CLOCK_S).get(request)
    return before_s if found is None else max(before_s, found[0])


def report(streams: Sequence[FaultedStream]) -> str:
    """The pauses, and the stages of the streams that moved, as tables in Markdown."""
    rows = []
    for kind, found in _kinds(streams).items():
        rows.append(_row(f"added pause, {kind} streams", [one.added_s for one in found]))
    rows += [_row(f"{stage}, after the fault", times) for stage, times in _stages(streams).items()]
    for (before, earlier), (stage, times) in pairwise(_stages(streams).items()):
        took = [end - begin for begin, end in zip(earlier, times, strict=True)]
        rows.append(_row(f"from {before} to {stage}", took))
    exact = (
        f"{sum(one.exact for one in found)} of {len(found)} {kind} streams"
        for kind, found in _kinds(streams).items()
    )
    header = ("seconds", "p50", "p99", "longest", "n")
    return f"{table(header, rows)}\n\nexact: {', '.join(exact)}"


def as_series(
    streams: Sequence[FaultedStream],
    name: str,
    machine: Mapping[str, str],
    conditions: dict[str, str | int | float],
) -> Series:
    """The figures of one fault."""
    figures: dict[str, Figure] = {}
    for kind, found in _kinds(streams).items():
        pauses = [one.added_s for one in found]
        for point, share in _POINTS.items() if pauses else ():
            each = value_of(percentile(pauses, share), "s", len(pauses), "streams")
            figures[f"added pause, {kind} streams, {point}"] = each
        if found:
            exact = sum(one.exact for one in found) / len(found)
            figures[f"exact, {kind} streams"] = value_of(exact, "share", len(found), "streams")
    for stage, times in _stages(streams).items():
        if times:
            figures[f"{stage}, p50"] = value_of(median(times), "s", len(times), "streams")
    return series_of(name, machine, conditions, figures)


def _kinds(streams: Sequence[FaultedStream]) -> dict[str, list[FaultedStream]]:
    return {
        "moved": [one for one in streams if one.stages_s is not None],
        "other": [one for one in streams if one.stages_s is None],
    }


def _stages(streams: Sequence[FaultedStream]) -> dict[str, list[float]]:
    moved = [one.stages_s for one in streams if one.stages_s is not None]
    return {stage: [times[number] for times in moved] for number, stage in enumerate(STAGES)}


def _row(name: str, values: Sequence[float]) -> list[str]:
    if not values:
        return [name, "", "", "", "0"]
    points = (percentile(values, share) for share in _POINTS.values())
    return [name, *(f"{value:.2f}" for value in points), str(len(values))]
