"""Tables and docstrings as Markdown."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with one line a row; a `|` in a cell is escaped."""
    lines = [_row(head), _row("---" for _ in head), *(_row(row) for row in rows)]
    return "\n".join(lines) + "\n"


def code(text: object) -> str:
    """The text as code; empty text stays empty."""
    return f"`{text}`" if str(text) else ""


def summary(thing: object) -> str:
    """The first paragraph of its docstring, on one line."""
    first, _, _ = (inspect.getdoc(thing) or "").partition("\n\n")
    return " ".join(first.split())


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", r"\|") for cell in cells) + " |"
