"""The metrics that come from rows of requests, so that both tell the same."""

from __future__ import annotations

from cluster.telemetry.requests.row import RequestRow
from engine.telemetry import Histogram

STRAGGLER = Histogram(
    "tandem_straggler_ratio",
    "The part of a choice's decode steps in which it had the most tokens, beside others; such a "
    "request makes the steps of all others longer.",
    ("endpoint",),
    buckets=(0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0),
)
FAILOVER_PAUSE = Histogram(
    "tandem_failover_pause_seconds",
    "What the loss of replicas added between two tokens of a choice; of choices that lost one.",
    ("endpoint",),
)


def count_row(row: RequestRow, endpoint: str) -> None:
    """Count the choices of a request that ended; `endpoint` is the label of its metrics."""
    for choice in row.choices:
        if choice.straggler_share is not None:
            STRAGGLER.observe(choice.straggler_share, endpoint=endpoint)
        if choice.failover_pause_s > 0:
            FAILOVER_PAUSE.observe(choice.failover_pause_s, endpoint=endpoint)
