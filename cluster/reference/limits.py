"""docs/reference/limits.md: the bounds of a request, with the reason for each."""

from __future__ import annotations

from cluster.api.limits import LIMITS
from cluster.reference.markdown import table

_INTRODUCTION = """\
# Limits of a request

`make reference` writes this page from the code.

A request beyond a limit gets HTTP 400 or gRPC `INVALID_ARGUMENT`, with the field that is wrong. A
body over the size limit gets HTTP 413 or gRPC `RESOURCE_EXHAUSTED`. Only the size is configured, by
`router.max_message_bytes`. Ignored fields have no limit of their own.
"""


def page() -> str:
    """The whole page."""
    rows = [(one.fields, f"{one.most:,} {one.unit}".strip(), one.reason) for one in LIMITS]
    return f"{_INTRODUCTION}\n{table(('of', 'at most', 'reason'), rows)}"
