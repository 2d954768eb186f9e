"""The order of rows in lists, for rows as plain data; `RowFilter` has it for rows of the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]


def rank(row: Row, *, slowest: bool) -> float:
    """The value by which a list orders rows, the largest first.

    That is the end, or with `slowest` TTFT; where no token came, the whole time counts. A row of
    another router raises KeyError, TypeError or ValueError if it lacks that.
    """
    if slowest:
        return float(row.get("ttft_s", row.get("total_s", 0.0)))
    return end(row)


def end(row: Row) -> float:
    """When the request ended, in seconds since the epoch; it raises as `rank` does."""
    return float(row["received_at"]) + float(row.get("total_s", 0.0))
