"""Throughput against latency over rates, and its knee. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench.goodput import ALL, LoadFigures
from bench.html_report import html_table, milliseconds, page
from bench.machine import as_line
from bench.svg import COLOURS, Mark, Plot

_HEADER = ("requests/s", "tokens/s", "good/s", "refused", "TTFT p50", "p95", "gap p50", "TTLT p95")


@dataclass(frozen=True, slots=True)
class Step:
    """One rate (requests per second), and what was found at it."""

    rate: float
    found: LoadFigures

    @property
    def latency_s(self) -> float | None:
        """From when a request was due to its last token, at the median."""
        return self.found.phases[ALL].ttlt.p50

    @property
    def power(self) -> float:
        """Tokens per second over latency; 0 where nothing was answered."""
        return self.found.tokens_per_s / self.latency_s if self.latency_s else 0.0


def knee(steps: Sequence[Step]) -> Step | None:
    """Where throughput over latency is greatest: beyond, more load buys more waiting than tokens.

    Kleinrock's power ("Power and deterministic rules of thumb for probabilistic problems in
    computer communications", ICC 1979).
    """
    answered = [step for step in steps if step.power > 0]
    return max(answered, key=lambda step: step.power, default=None)


def sweep_data(steps: Sequence[Step], machine: dict[str, str]) -> dict[str, object]:
    """Everything, for JSON."""
    found = knee(steps)
    return {
        "machine": machine,
        "knee": found.rate if found else None,
        "steps": [{"rate": step.rate, "figures": asdict(step.found)} for step in steps],
    }


def sweep_page(system: str, title: str, steps: Sequence[Step], machine: dict[str, str]) -> str:
    """The curve, the knee and a table, as one page."""
    parts = [
        f"<p>{title}.</p>",
        f"<p><b>{knee_line(steps)}</b></p>",
        _curve(steps).svg(),
        _by_rate(steps).svg(),
        html_table(_HEADER, [_row(step) for step in steps]),
        f'<p class="small">Times in ms. {as_line(machine)}</p>',
    ]
    return page(f"Throughput and latency of {system}", parts)


def knee_line(steps: Sequence[Step]) -> str:
    """The knee in words."""
    found = knee(steps)
    if found is None or found.latency_s is None:
        return "Nothing was answered."
    return (
        f"The knee is at {found.rate:g} requests/s: {found.found.tokens_per_s:,.0f} tokens/s,"
        f" last token after {found.latency_s:.2f} s at the median."
    )


def _curve(steps: Sequence[Step]) -> Plot:
    def line(name: str, field: str, colour: str) -> Mark:
        pairs = [
            (step.found.tokens_per_s, getattr(step.found.phases[ALL].ttlt, field)) for step in steps
        ]
        return Mark(name, [(x, y) for x, y in pairs if y is not None], "line", colour)

    marks = [line("p50", "p50", COLOURS[0]), line("p95", "p95", COLOURS[1])]
    found = knee(steps)
    if found is not None and found.latency_s is not None:
        place = (found.found.tokens_per_s, found.latency_s)
        marks.append(Mark("knee", [place], "dots", COLOURS[6]))
    return Plot("Seconds to the last token", "tokens per second", marks)


def _by_rate(steps: Sequence[Step]) -> Plot:
    good = [(step.rate, step.found.good_per_s) for step in steps]
    return Plot(
        "Requests within the budgets, per second",
        "requests per second",
        [Mark("", good, "line", COLOURS[2])],
    )


def _row(step: Step) -> list[str]:
    whole = step.found.phases[ALL]
    times = (whole.ttft.p50, whole.ttft.p95, whole.gap.p50, whole.ttlt.p95)
    counts = [f"{step.rate:g}", f"{step.found.tokens_per_s:,.0f}", f"{step.found.good_per_s:.2f}"]
    return [*counts, str(whole.refused), *map(milliseconds, times)]
