"""Figures for the results of two modes that played one load window by window. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.core.results import RESAMPLED, Figure, Series, figure, only_measured, value_of
from bench.core.statistics import between
from bench.load.goodput import Quantiles
from bench.systems.contenders import POOLS, SINGLE

_MS = 1000.0


@dataclass(frozen=True, slots=True)
class PairedOutcome:
    """The outcome of one request of the load in one round and mode; times in seconds."""

    round: int
    system: str
    index: int
    within_goals: bool
    refused: bool
    ttft_s: float | None
    itl_s: float | None


def as_series(
    name: str,
    outcomes: Sequence[PairedOutcome],
    conditions: dict[str, str | int | float],
    commit: str,
    date: str,
) -> Series:
    """The series of all rounds. A request that was sent to one mode only is left out."""
    figures: dict[str, Figure | None] = {}
    for system in (POOLS, SINGLE):
        mine = [one for one in outcomes if one.system == system]
        for title, count in (
            ("within goals", sum(one.within_goals for one in mine)),
            ("refused", sum(one.refused for one in mine)),
        ):
            figures[f"{system}: {title}"] = value_of(count, "requests", len(mine), "requests")
        itl = Quantiles.of(one.itl_s for one in mine)
        for point in ("p50", "p95", "mean"):
            value = getattr(itl, point)
            if value is not None:
                told = value_of(_MS * value, "ms", itl.count, "requests")
                figures[f"{system}: ITL {point}, all"] = told
    figures |= _differences(outcomes) | _ratios(outcomes)
    return Series(
        name=name,
        commit=commit,
        date=date,
        conditions=conditions,
        figures=only_measured(figures),
    )


def _differences(outcomes: Sequence[PairedOutcome]) -> dict[str, Figure | None]:
    """The differences of each request between both modes."""
    pairs: dict[tuple[int, int], dict[str, PairedOutcome]] = {}
    for one in outcomes:
        pairs.setdefault((one.round, one.index), {})[one.system] = one
    both = [(pair[POOLS], pair[SINGLE]) for pair in pairs.values() if len(pair) == 2]
    less = [
        _MS * (mine.itl_s - other.itl_s)
        for mine, other in both
        if mine.itl_s is not None and other.itl_s is not None
    ]
    alone = {
        POOLS: sum(mine.within_goals and not other.within_goals for mine, other in both),
        SINGLE: sum(other.within_goals and not mine.within_goals for mine, other in both),
    }
    figures: dict[str, Figure | None] = {
        f"{system} alone: within goals": value_of(count, "requests", len(both), "requests")
        for system, count in alone.items()
    }
    if less:
        of, n = "requests", len(less)
        smaller = sum(value < 0 for value in less) / n
        title = f"{POOLS} less {SINGLE}"
        figures[f"{title}: ITL of a request, p50"] = value_of(
            median(less), "ms", n, of, between(less), RESAMPLED
        )
        figures[f"{title}: share of smaller ITL"] = value_of(smaller, "of 1", n, of)
    return figures


def _ratios(outcomes: Sequence[PairedOutcome]) -> dict[str, Figure | None]:
    """The ratios of two pools to one pool, round by round."""
    title = f"{POOLS} over {SINGLE}"
    rounds = sorted({one.round for one in outcomes})
    of = {
        (number, system): [one for one in outcomes if (one.round, one.system) == (number, system)]
        for number in rounds
        for system in (POOLS, SINGLE)
    }
    within_goals = {key: sum(one.within_goals for one in them) for key, them in of.items()}
    ratios = [
        within_goals[n, POOLS] / within_goals[n, SINGLE] for n in rounds if within_goals[n, SINGLE]
    ]
    figures = {f"{title}: goodput": figure(ratios, "x", "rounds")}
    for point in ("p50", "p95", "mean"):
        values = {
            key: getattr(Quantiles.of(one.itl_s for one in them), point) for key, them in of.items()
        }
        both = [n for n in rounds if values[n, POOLS] and values[n, SINGLE]]
        ratios = [values[n, POOLS] / values[n, SINGLE] for n in both]
        figures[f"{title}: ITL {point}"] = figure(ratios, "x", "rounds")
    return figures
