"""docs/reference/row-fields.md: the fields of a row of a request, and of each of its choices."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from cluster.config.descriptions import descriptions
from cluster.reference.markdown import code, table
from cluster.telemetry.requests.row import ChoiceRow, RequestRow

_INTRODUCTION = """\
# Fields of a request's row

`make reference` writes this page from the code. [Watch status, logs and
metrics](../howto/watch-status-logs-metrics.md) says where rows are.

`tandem explain ID --json` has all fields. A row of `tandem requests --json` has those of the
request and of its slowest choice. A field that is not known, or was not reached, is absent.

Names that end in `_s` are seconds. A moment is counted from the arrival of the request, on the
clock of its router.
"""


def page() -> str:
    """The whole page."""
    return "\n".join(
        [
            _INTRODUCTION,
            f"## Of a request\n\n{_table(RequestRow)}",
            f"## Of each choice\n\n{_table(ChoiceRow)}",
        ]
    )


def _table(row: type[Any]) -> str:
    meanings = descriptions(row)
    return table(
        ("field", "meaning"), [(code(one.name), meanings[one.name]) for one in fields(row)]
    )
