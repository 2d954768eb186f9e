"""Ratios and tables of the rounds' results. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain

from bench.core.figure_text import when_measured
from bench.core.host_info import as_line
from bench.core.markdown_tables import table
from bench.core.results import Figure, Series, figure, only_measured
from bench.core.statistics import Spread, pooled, ratio
from bench.systems.peer_systems import SYSTEMS, TANDEM, TANDEM_INSIDE

COLUMNS = ("decode 1", "decode 8", "decode 32", "prefill")
# Tandem's goals against the best peer over HTTP.
GOALS = {"decode 1": 1.0, "decode 8": 1.3, "decode 32": 1.35, "prefill": 1.1}


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The result of one system in one round: tokens/s by column, or the error.

    `at` is the time (UTC, to the minute) and `commit` is Tandem's.
    """

    system: str
    round: int
    columns: dict[str, list[float]]
    error: str | None
    at: str = ""
    commit: str = ""

    def line(self) -> str:
        """The result in one line for the terminal."""
        if self.error is not None:
            return self.error
        return ", ".join(
            f"{name} {Spread(tuple(values)).show()}" for name, values in self.columns.items()
        )

    def as_json(self) -> str:
        """The result as JSON on one line."""
        return json.dumps(asdict(self))


Rounds = Mapping[int, Spread]


def by_round(results: Sequence[RoundResult], system: str, column: str) -> Rounds:
    """A system's figures in a column, by round; rounds that failed are missing."""
    return {
        each.round: Spread(tuple(each.columns[column]))
        for each in results
        if each.system == system and each.columns.get(column)
    }


def against(results: Sequence[RoundResult], ours: str, theirs: str, column: str) -> Spread | None:
    """Ratios of the rounds in which both were measured, or None."""
    mine, other = by_round(results, ours, column), by_round(results, theirs, column)
    both = sorted(mine.keys() & other.keys())
    return ratio([mine[n] for n in both], [other[n] for n in both]) if both else None


def best_peer(results: Sequence[RoundResult], ours: str, column: str) -> str | None:
    """The peer beside that line of Tandem's with the highest median, or None."""
    peers = [name for name, system in SYSTEMS.items() if system.rival == ours]
    medians = {
        name: pooled(list(rounds.values())).median
        for name in peers
        if (rounds := by_round(results, name, column))
    }
    return max(medians, key=lambda name: medians[name]) if medians else None


def as_series(results: Sequence[RoundResult], conditions: dict[str, str | int | float]) -> Series:
    """The series of rates and ratios, if any system was measured."""
    figures: dict[str, Figure | None] = {}
    for column in COLUMNS:
        for name, system in SYSTEMS.items():
            rates = [spread.values for spread in by_round(results, name, column).values()]
            figures[f"{name}: {column}"] = figure(chain(*rates), "tokens/s", "repeats")
            if system.rival is not None:
                ratios = against(results, system.rival, name, column)
                figures[f"{system.rival} over {name}: {column}"] = _over(ratios)
        for ours in (TANDEM, TANDEM_INSIDE):
            peer = best_peer(results, ours, column)
            ratios = against(results, ours, peer, column) if peer else None
            figures[f"{ours} over the best peer: {column}"] = _over(ratios)
    ended = [each for each in results if not each.error]
    return Series(
        name="peers",
        commit=", ".join(sorted({each.commit for each in ended})),
        date=max(each.at for each in ended).partition(" ")[0],
        conditions=conditions,
        figures=only_measured(figures),
    )


def _over(ratios: Spread | None) -> Figure | None:
    return figure(ratios.values, "x", "rounds") if ratios else None


def as_markdown(results: Sequence[RoundResult], machine: dict[str, str]) -> str:
    """Tables of figures, of ratios and of goals; the failures, and the machine."""
    errors = [
        f"- {each.system}, round {each.round}: {each.error}" for each in results if each.error
    ]
    failed = ["Failed:", *errors] if errors else []
    parts = [
        _figures(results),
        "Tandem over each, median of the rounds [range]:",
        _ratios(results),
        "Tandem over the best peer of its kind in each column:",
        _goals(results),
        "\n".join(failed),
        when_measured([(each.at, each.commit) for each in results]),
        as_line(machine),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _figures(results: Sequence[RoundResult]) -> str:
    rows = []
    for name, system in SYSTEMS.items():
        cells = [list(by_round(results, name, column).values()) for column in COLUMNS]
        if any(cells):
            rows.append([system.title, *(pooled(cell).show() if cell else "" for cell in cells)])
    return table(["tokens/s, median [range]", *COLUMNS], rows)


def _ratios(results: Sequence[RoundResult]) -> str:
    rows = []
    for name, system in SYSTEMS.items():
        if system.rival is None:
            continue
        spreads = [against(results, system.rival, name, column) for column in COLUMNS]
        if any(spreads):
            rows.append([system.title, *(spread.show(2) if spread else "" for spread in spreads)])
    return table(["over", *COLUMNS], rows)


def _goals(results: Sequence[RoundResult]) -> str:
    rows = []
    for ours, where in ((TANDEM, "over HTTP"), (TANDEM_INSIDE, "in process")):
        cells = []
        for column in COLUMNS:
            peer = best_peer(results, ours, column)
            spread = against(results, ours, peer, column) if peer else None
            cells.append(f"{spread.show(2)} ({peer})" if spread else "")
        rows.append([where, *cells])
    rows.append(["goal", *(f"{GOALS[column]:.2f}" for column in COLUMNS)])
    return table(["", *COLUMNS], rows)
