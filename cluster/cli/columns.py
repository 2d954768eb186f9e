"""Rows of text as aligned columns, for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Sequence

Row = Sequence[str]


def aligned(rows: Sequence[Row], text_columns: int) -> list[str]:
    """A line for each row. The first `text_columns` are aligned to the left, others to the right.

    All rows have as many cells.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index < text_columns else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
