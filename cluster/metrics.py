"""What the router and the replicas' shells count."""

from __future__ import annotations

from engine.telemetry import Counter, Gauge, Histogram

REQUESTS = Counter("tandem_requests_total", "Requests that ended, by outcome.", ("outcome",))
REFUSED = Counter("tandem_refused_total", "Requests refused for lack of room.", ("reason",))
RUNNING = Gauge("tandem_router_running_requests", "Requests in this router now.")
HELD = Gauge("tandem_router_held_requests", "Requests that wait in the router for admission.")
PREDICTED_QUEUE = Gauge(
    "tandem_predicted_queue_seconds", "Prompts from here that wait on a replica.", ("replica",)
)
PREDICTION = Histogram(
    "tandem_ttft_predicted_ratio",
    "Predicted over actual time to the first token, of admitted requests: 1 is right.",
    buckets=(0.1, 0.25, 0.5, 0.75, 0.9, 1.1, 1.33, 2.0, 4.0, 10.0),
)
TTFT = Histogram("tandem_ttft_seconds", "From a request's arrival to its first token sent.")
TIME_TO_CANCEL = Histogram(
    "tandem_time_to_cancel_seconds",
    "From a request's abandonment until both pools hold nothing of it.",
)
GENERATED = Counter("tandem_generated_tokens_total", "Tokens sent to clients.")
WAITING = Gauge("tandem_replica_waiting_requests", "Requests that wait.", ("role", "replica"))
ACTIVE = Gauge("tandem_replica_running_requests", "Requests being computed.", ("role", "replica"))
BLOCKS = Gauge("tandem_kv_blocks", "KV blocks by state.", ("role", "replica", "state"))
