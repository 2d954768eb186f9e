"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; figures to the right. Every row is as wide as the header."""
    if any(len(row) != len(header) for row in rows):
        raise ValueError(f"rows of {len(header)} cells are needed")
    lines = [header, ["---", *(["---:"] * (len(header) - 1))], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
