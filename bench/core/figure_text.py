"""Figures as text: a cell of a table, a table of a series. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from bench.core.markdown_tables import table
from bench.core.results import RESAMPLED, Figure, Series

_WHOLE = ("requests", "runs", "tokens/s", "messages/s", "blocks", "preemptions")


def shown(value: float, unit: str) -> str:
    """The value with its significant digits."""
    if unit in _WHOLE or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def with_interval(figure: Figure) -> str:
    """The value and its interval, if it has one."""
    value = shown(figure.value, figure.unit)
    if figure.low is None or figure.high is None:
        return value
    how = ", 95 %" if figure.interval == RESAMPLED else ""
    low, high = (shown(each, figure.unit) for each in (figure.low, figure.high))
    return f"{value} [{low} to {high}{how}]"


def origin(series: Series) -> str:
    """Commit and date, short."""
    words = series.commit.split(", ")
    return f"{', '.join(_short(word) for word in words)}, {series.date}"


def when_measured(moments: Iterable[tuple[str, str]]) -> str:
    """The time of the first and last measurement, and their commits; each moment is such a pair."""
    known = list(moments)
    times = sorted(at for at, _ in known if at)
    commits = sorted({commit for _, commit in known if commit})
    return f"Measured from {times[0]} to {times[-1]} at {', '.join(commits)}." if times else ""


def samples(figure: Figure) -> str:
    """The number and kind of samples, for example `3 runs`."""
    if figure.n != 1:
        return f"{figure.n:,} {figure.of}"
    first, space, rest = figure.of.partition(" ")
    return f"1 {first.removesuffix('s')}{space}{rest}"


def figures_table(series: Series) -> str:
    """All figures of a series, for the terminal."""
    rows = [
        [name, one.unit, with_interval(one), samples(one)] for name, one in series.figures.items()
    ]
    return table([series.name, "unit", "median [interval]", "of"], rows)


def _short(commit: str) -> str:
    name, _, rest = commit.partition(" ")
    return f"{name[:7]} {rest}".strip()
