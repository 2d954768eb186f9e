"""Tables in Markdown, and putting them into a document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; figures to the right. Every row is as wide as the header."""
    if any(len(row) != len(header) for row in rows):
        raise ValueError(f"rows of {len(header)} cells are needed")
    lines = [header, ["---", *(["---:"] * (len(header) - 1))], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def put(document: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- NAME -->` and `<!-- /NAME -->` in a document.

    Raises ValueError where the document has no such place.
    """
    before, opening, rest = document.read_text().partition(f"<!-- {name} -->\n")
    _, closing, after = rest.partition(f"<!-- /{name} -->\n")
    if not opening or not closing:
        raise ValueError(f"{document} has no place named {name}")
    document.write_text(f"{before}{opening}{text.strip()}\n{closing}{after}")
