"""Throughput against latency over rates, and its knee. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any, Self

from bench.core.host_info import as_line
from bench.core.svg import COLOURS, Mark, Plot
from bench.load.goodput import ALL, LoadFigures
from bench.load.html_report import html_table, milliseconds, page

_KNEES = ("", "knee, requests/s", "tokens/s", "TTLT p50", "TTLT p95")
_HEADER = (
    "requests/s",
    "tokens/s",
    "goodput/s",
    "refused",
    "TTFT p50",
    "p95",
    "ITL p50",
    "TTLT p95",
)


@dataclass(frozen=True, slots=True)
class Step:
    """One rate (requests per second), and its figures."""

    rate: float
    figures: LoadFigures

    @property
    def latency_s(self) -> float | None:
        """From the due time of a request to its last token, at the median."""
        return self.figures.phases[ALL].ttlt.p50

    @property
    def power(self) -> float:
        """Tokens per second over latency; 0 if no request was answered."""
        return self.figures.tokens_per_s / self.latency_s if self.latency_s else 0.0


@dataclass(frozen=True, slots=True)
class Point:
    """One rate of a sweep: throughput, and seconds to the last token or None."""

    rate: float
    tokens_per_s: float
    p50_s: float | None
    p95_s: float | None


@dataclass(frozen=True, slots=True)
class Curve:
    """A whole sweep with its name, for comparison with other sweeps. `knee` is a rate."""

    name: str
    points: tuple[Point, ...]
    knee: float | None

    @classmethod
    def read(cls, data: Any) -> Self:
        """Read the data of `sweep_data`; raises ValueError for other data."""
        try:
            points = [_point(step["rate"], step["figures"]) for step in data["steps"]]
            return cls(str(data["name"]), tuple(points), data["knee"])
        except (KeyError, TypeError):
            raise ValueError("this is no sweep's file") from None

    @property
    def at_knee(self) -> Point | None:
        """The point of the knee."""
        return next((point for point in self.points if point.rate == self.knee), None)


def _point(rate: float, figures: dict[str, Any]) -> Point:
    ttlt = figures["phases"][ALL]["ttlt"]
    return Point(rate, figures["tokens_per_s"], ttlt["p50"], ttlt["p95"])


def knee(steps: Sequence[Step]) -> Step | None:
    """The step with the greatest throughput over latency; more load adds more waiting than tokens.

    Kleinrock's power ("Power and deterministic rules of thumb for probabilistic problems in
    computer communications", ICC 1979).
    """
    answered = [step for step in steps if step.power > 0]
    return max(answered, key=lambda step: step.power, default=None)


def sweep_data(name: str, steps: Sequence[Step], machine: dict[str, str]) -> dict[str, object]:
    """The sweep as data for JSON."""
    found = knee(steps)
    return {
        "name": name,
        "machine": machine,
        "knee": found.rate if found else None,
        "steps": [{"rate": step.rate, "figures": asdict(step.figures)} for step in steps],
    }


def sweep_page(
    name: str,
    title: str,
    steps: Sequence[Step],
    machine: dict[str, str],
    beside: Sequence[Curve] = (),
) -> str:
    """A page with the curve, the knee and a table, and with earlier sweeps if given."""
    own = Curve.read(sweep_data(name, steps, machine))
    parts = [
        f"<p>{escape(title)}.</p>",
        f"<p><b>{knee_line(steps)}</b></p>",
        _curve(own).svg(),
        *(_beside([own, *beside]) if beside else []),
        _by_rate(steps).svg(),
        html_table(_HEADER, [_row(step) for step in steps]),
        f'<p class="small">Times in ms. {escape(as_line(machine))}</p>',
    ]
    return page(f"Throughput and latency of {name}", parts)


def knee_line(steps: Sequence[Step]) -> str:
    """The knee in words."""
    found = knee(steps)
    if found is None or found.latency_s is None:
        return "Nothing was answered."
    beyond = len(steps) > 1 and found.rate == max(step.rate for step in steps)
    return (
        f"The knee is at {found.rate:g} requests/s: {found.figures.tokens_per_s:,.0f} tokens/s,"
        f" last token after {found.latency_s:.2f} s at the median."
        + (" No higher rate was tried, so it may lie beyond." if beyond else "")
    )


def _curve(own: Curve) -> Plot:
    marks = [
        Mark("p50", _line(own, "p50_s"), "line", COLOURS[0]),
        Mark("p95", _line(own, "p95_s"), "line", COLOURS[1]),
    ]
    found = own.at_knee
    if found is not None and found.p50_s is not None:
        marks.append(Mark("knee", [(found.tokens_per_s, found.p50_s)], "dots", COLOURS[6]))
    return Plot("Seconds to the last token, rate by rate", "tokens per second", marks)


def _line(curve: Curve, field: str) -> list[tuple[float, float]]:
    pairs = [(point.tokens_per_s, getattr(point, field)) for point in curve.points]
    return [(x, y) for x, y in pairs if y is not None]


def _beside(curves: Sequence[Curve]) -> list[str]:
    """A plot of all sweeps at p95, each with its knee as a dot, and a table of the knees."""
    marks, rows = [], []
    for curve, colour in zip(curves, COLOURS, strict=False):
        marks.append(Mark(curve.name, _line(curve, "p95_s"), "line", colour))
        found = curve.at_knee
        if found is None:
            rows.append([curve.name, *("-",) * 4])
            continue
        if found.p95_s is not None:
            marks.append(Mark("", [(found.tokens_per_s, found.p95_s)], "dots", colour))
        times = map(milliseconds, (found.p50_s, found.p95_s))
        rows.append([curve.name, f"{found.rate:g}", f"{found.tokens_per_s:,.0f}", *times])
    plot = Plot("Seconds to the last token at p95, beside others", "tokens per second", marks)
    return [plot.svg(), html_table(_KNEES, rows)]


def _by_rate(steps: Sequence[Step]) -> Plot:
    within_goals = [(step.rate, step.figures.goodput_per_s) for step in steps]
    return Plot(
        "Requests within the budgets, per second",
        "requests per second",
        [Mark("", within_goals, "line", COLOURS[2])],
    )


def _row(step: Step) -> list[str]:
    whole = step.figures.phases[ALL]
    times = (whole.ttft.p50, whole.ttft.p95, whole.mean_itl.p50, whole.ttlt.p95)
    counts = [
        f"{step.rate:g}",
        f"{step.figures.tokens_per_s:,.0f}",
        f"{step.figures.goodput_per_s:.2f}",
    ]
    return [*counts, str(whole.refused), *map(milliseconds, times)]
