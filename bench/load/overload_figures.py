"""What an overload shows: who was served in time, who was refused how fast. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bench.core.markdown_tables import table
from bench.core.results import Figure, Series, series_of, value_of
from bench.core.statistics import percentile
from bench.load.overload_client import OK, REFUSED, OverloadAnswer

# Probes in a row that must be quick before the cluster counts as calm again.
_CALM_PROBES = 3


@dataclass(frozen=True, slots=True)
class Overload:
    """One run over one front end; `budget_s` is the TTFT budget.

    `probes` are single requests sent one after the other when the load has ended, at `ended_s`.
    """

    front_end: str
    capacity: float
    offered: float
    budget_s: float
    ended_s: float
    answers: Sequence[OverloadAnswer]
    probes: Sequence[OverloadAnswer]

    @property
    def served(self) -> list[float]:
        """The TTFT of each served request."""
        return [one.ttft_s for one in self.answers if one.outcome == OK and one.ttft_s is not None]

    @property
    def refused(self) -> list[float]:
        """The time of each refusal."""
        return [one.took_s for one in self.answers if one.outcome == REFUSED]

    @property
    def bare(self) -> Counter[str]:
        """Answers that are neither served nor refused with a retry time, by status."""
        return Counter(
            f"{one.outcome} without a retry time" if one.outcome == REFUSED else one.outcome
            for one in self.answers
            if one.outcome != OK and (one.outcome != REFUSED or one.retry_s is None)
        )

    @property
    def in_time(self) -> float:
        """The part of served requests within the budget."""
        return _part(self.served, self.budget_s)

    @property
    def refused_in_time(self) -> float:
        """The part of refusals within half the budget."""
        return _part(self.refused, self.budget_s / 2)

    @property
    def calm_s(self) -> float | None:
        """From the end of the load until probes are served within the budget; None: never."""
        streak = 0
        for index, probe in enumerate(self.probes):
            quick = probe.ttft_s is not None and probe.ttft_s <= self.budget_s
            streak = streak + 1 if quick else 0
            if streak == _CALM_PROBES:
                return self.probes[index - _CALM_PROBES + 1].sent_s - self.ended_s
        return None


def report(runs: Sequence[Overload]) -> str:
    """The runs as a table in Markdown."""
    header = (
        "front end",
        "capacity, offered/s",
        "served, refused, bare",
        "TTFT of served, ms: p50 / p99 / most",
        "in budget",
        "refusal, ms: p50 / p99 / most",
        "within half",
        "calm after, s",
    )
    rows = [
        (
            run.front_end,
            f"{run.capacity:.1f}, {run.offered:.0f}",
            f"{len(run.served)}, {len(run.refused)}, {dict(run.bare) or 0}",
            _spread(run.served),
            f"{run.in_time:.1%}",
            _spread(run.refused),
            f"{run.refused_in_time:.1%}",
            "never" if run.calm_s is None else f"{run.calm_s:.1f}",
        )
        for run in runs
    ]
    return table(header, rows)


def as_series(
    run: Overload, machine: dict[str, str], conditions: dict[str, str | int | float]
) -> Series:
    """The series of one run."""
    sent = len(run.answers)
    figures: dict[str, Figure | None] = {
        "capacity": value_of(run.capacity, "requests/s", 1, "runs"),
        "offered": value_of(run.offered, "requests/s", 1, "runs"),
        "served": value_of(len(run.served) / sent, "of 1", sent, "requests"),
        "served: within budget": _of(run.in_time, run.served),
        "refused: within half of the budget": _of(run.refused_in_time, run.refused),
        "served: TTFT p99": _p99(run.served),
        "refused: p99": _p99(run.refused),
        "without a retry time": value_of(run.bare.total(), "requests", sent, "requests"),
    }
    if run.calm_s is not None:
        figures["calm after"] = value_of(run.calm_s, "s", 1, "runs")
    return series_of(run.front_end, machine, conditions, figures)


def _of(part: float, samples: Sequence[float]) -> Figure | None:
    return value_of(part, "of 1", len(samples), "requests") if samples else None


def _p99(samples: Sequence[float]) -> Figure | None:
    return (
        value_of(1000 * percentile(samples, 0.99), "ms", len(samples), "requests")
        if samples
        else None
    )


def _part(samples: Sequence[float], bound: float) -> float:
    return sum(one <= bound for one in samples) / len(samples) if samples else 1.0


def _spread(samples: Sequence[float]) -> str:
    if not samples:
        return "none"
    return " / ".join(f"{1000 * percentile(samples, share):.0f}" for share in (0.5, 0.99, 1.0))
