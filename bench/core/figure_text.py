"""Figures as text: a cell of a table, a table of a series. Pure."""

from __future__ import annotations

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
