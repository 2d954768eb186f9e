"""What the router and the replicas' shells count."""

from __future__ import annotations

from engine.telemetry import Counter, Gauge, Histogram

REQUESTS = Counter("tandem_requests_total", "Requests that ended, by outcome.", ("outcome",))
REFUSED = Counter("tandem_refused_total", "Requests refused for lack of room.", ("reason",))
RUNNING = Gauge("tandem_router_running_requests", "Requests in this router now.")
TTFT = Histogram("tandem_ttft_seconds", "From a request's arrival to its first token sent.")
TIME_TO_CANCEL = Histogram(
    "tandem_time_to_cancel_seconds",
    "From a request's abandonment until both pools hold nothing of it.",
)
GENERATED = Counter("tandem_generated_tokens_total", "Tokens sent to clients.")
WAITING = Gauge("tandem_replica_waiting_requests", "Requests that wait.", ("role", "replica"))
ACTIVE = Gauge("tandem_replica_running_requests", "Requests being computed.", ("role", "replica"))
BLOCKS = Gauge("tandem_kv_blocks", "KV blocks by state.", ("role", "replica", "state"))
