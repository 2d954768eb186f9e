"""The metrics of the prefill pool."""

from __future__ import annotations

from engine.telemetry import Counter, Histogram

STEP_FAILURES = Counter("tandem_prefill_step_failures_total", "Prefill steps that raised.")
QUEUE_WAIT = Histogram(
    "tandem_prefill_queue_wait_seconds",
    "From a prompt's arrival on the replica to its first chunk.",
    ("lane",),
)
PREFILL_TIME = Histogram(
    "tandem_prefill_seconds", "From the first chunk to the first token.", ("lane",)
)
