"""What the prefill pool counts."""

from __future__ import annotations

from engine.telemetry import Counter, Histogram

TOKENS = Counter("tandem_prefill_tokens_total", "Prompt tokens computed.")
STEP_FAILURES = Counter("tandem_prefill_step_failures_total", "Prefill steps that raised.")
QUEUE_WAIT = Histogram("tandem_prefill_queue_wait_seconds", "From arrival to the first chunk.")
PREFILL_TIME = Histogram("tandem_prefill_seconds", "From the first chunk to the first token.")
