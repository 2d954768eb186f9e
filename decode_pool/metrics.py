"""The metrics of the decode pool."""

from __future__ import annotations

from engine.telemetry import Counter, Histogram

TOKENS = Counter("tandem_decode_tokens_total", "Tokens generated on decode replicas.")
STEP_FAILURES = Counter("tandem_decode_step_failures_total", "Decode steps that raised.")
PREEMPTIONS = Counter(
    "tandem_decode_preemptions_total",
    "Times that requests gave up their blocks, to be computed again; counted as they end.",
)
RECOMPUTED_TOKENS = Counter(
    "tandem_decode_recomputed_tokens_total",
    "Tokens computed a second time on a decode replica. `reason` is `preemption` or `failover`; it "
    "is `handed_over` if decode computed a prompt that prefill had handed over, which is a fault.",
    ("reason",),
)
STEP_TIME = Histogram("tandem_decode_step_seconds", "One step of the decode loop.")
INTER_TOKEN_LATENCY = Histogram(
    "tandem_decode_inter_token_latency_seconds",
    "From the end of one step to that of the next, what was computed between them included: "
    "the inter-token latency of every stream in both; one observation for each step.",
)
BATCH = Histogram(
    "tandem_decode_batch_requests",
    "Requests in a step.",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
)
LOCAL_PREFILLS = Counter(
    "tandem_decode_local_prefills_total", "Prompts computed on a decode replica, not handed over."
)
ADMISSION_WAIT = Histogram(
    "tandem_decode_admission_wait_seconds", "From the offer of a prompt's KV to blocks for it."
)
TRANSFER_TIME = Histogram(
    "tandem_kv_transfer_exposed_seconds",
    "From pulling a prompt's KV to its commit, less what was moved while it was computed.",
)
TRANSFER_BYTES = Counter("tandem_kv_transfer_bytes_total", "KV bytes received.")
