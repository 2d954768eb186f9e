"""What the decode pool counts."""

from __future__ import annotations

from engine.telemetry import Counter, Histogram

TOKENS = Counter("tandem_decode_tokens_total", "Tokens generated after the first.")
STEP_FAILURES = Counter("tandem_decode_step_failures_total", "Decode steps that raised.")
PREEMPTIONS = Counter("tandem_decode_preemptions_total", "Requests that gave up their blocks.")
STEP_TIME = Histogram("tandem_decode_step_seconds", "One step of the decode loop.")
BATCH = Histogram(
    "tandem_decode_batch_requests",
    "Requests in a step.",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
)
LOCAL_PREFILLS = Counter(
    "tandem_decode_local_prefills_total", "Prompts computed on a decode replica, not handed over."
)
TRANSFER_TIME = Histogram("tandem_kv_transfer_seconds", "From pulling the KV to its commit.")
TRANSFER_BYTES = Counter("tandem_kv_transfer_bytes_total", "KV bytes received.")
