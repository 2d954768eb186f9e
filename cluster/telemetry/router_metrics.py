"""The metrics of a router. `REQUEST`: the labels of a request (`cluster/telemetry/labels.py`)."""

from __future__ import annotations

from engine.telemetry import Counter, Gauge, Histogram

REQUEST = ("endpoint", "lane", "tenant")

REQUESTS = Counter(
    "tandem_requests_total",
    "Requests that ended; `outcome` is `ok`, `cancelled`, or the class of the error.",
    (*REQUEST, "outcome"),
)
REFUSED = Counter(
    "tandem_refused_total", "Requests that were refused, by reason.", (*REQUEST, "reason")
)
FRONT_END_ERRORS = Counter(
    "tandem_front_end_errors_total",
    "Calls that a front end (`grpc`, `http`) answered with an error, by its class; also those that "
    "never reached the router, as with a wrong key.",
    ("front_end", "error"),
)
FAILOVERS = Counter(
    "tandem_failovers_total",
    "Choices that went on on other replicas, because a replica or KV on its way was lost.",
    ("reason",),
)
RESUMED = Counter("tandem_streams_resumed_total", "Clients that came back to a resumable stream.")
STREAMS_TAKEN_OVER = Counter(
    "tandem_streams_taken_over_total",
    "Resumable streams that this router went on with, because their router was lost.",
)
ARRIVAL_LAG = Histogram(
    "tandem_arrival_lag_seconds",
    "How long requests wait at the socket of a front end (`grpc`, `http`) before the router reads "
    "them, by a probe that the router sends to itself. The wait counts in all other times.",
    ("front_end",),
)
RUNNING = Gauge("tandem_router_running_requests", "Requests in this router now.")
WAITING = Gauge("tandem_router_waiting_requests", "Requests that wait in this router.")
ARM_REQUESTS = Counter(
    "tandem_canary_requests_total",
    "Requests that ended, of endpoints with a canary, by arm and outcome.",
    ("endpoint", "arm", "outcome"),
)
ARM_TTFT = Histogram(
    "tandem_canary_ttft_seconds",
    "Arrival to first token sent, of endpoints with a canary, by arm.",
    ("endpoint", "arm"),
)
ROLLED_BACK = Gauge(
    "tandem_canary_rolled_back", "1 once an endpoint's canary was rolled back.", ("endpoint",)
)
SHARING = Gauge(
    "tandem_router_cap_sharing", "1 while this router shares caps with the others, 0 while alone."
)
ROUTERS = Gauge("tandem_cap_sharing_routers", "Routers that share the caps, as this one knows.")
PREDICTED_QUEUE = Gauge(
    "tandem_predicted_queue_seconds",
    "Prompts from this router that wait on a replica, as predicted.",
    ("replica",),
)
PREDICTION = Histogram(
    "tandem_ttft_predicted_ratio",
    "Admission's error: predicted over actual time to the first token of admitted requests; "
    "1 is right. Not of the batch lane.",
    ("endpoint", "lane"),
    buckets=(0.1, 0.25, 0.5, 0.75, 0.9, 1.1, 1.33, 2.0, 4.0, 10.0),
)
DESIRED = Gauge(
    "tandem_pool_desired_replicas", "Replicas that a pool that scales should have.", ("pool",)
)
TTFT = Histogram("tandem_ttft_seconds", "From arrival to the first token sent.", REQUEST)
TTFT_OF_BUDGET = Histogram(
    "tandem_ttft_budget_ratio",
    "Time to the first token over the endpoint's budget: above 1 is late. Not of the batch lane.",
    ("endpoint", "lane"),
    buckets=(0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0),
)
TTFMT = Histogram(
    "tandem_ttfmt_seconds",
    "From arrival to the first meaningful token: the first whose text has a letter or digit.",
    REQUEST,
)
STAGE = Histogram(
    "tandem_stage_seconds",
    "A choice's time by stage: `queue`, `prefill` and `first_flush` add up to its TTFT; "
    "`transfer` (exposed time) and `decode_admission` come before its second token.",
    (*REQUEST, "stage"),
)
INTER_TOKEN_LATENCY = Histogram(
    "tandem_inter_token_latency_seconds",
    "Time per token after the first, over a whole choice; one observation for each.",
    REQUEST,
)
STREAM_PAUSE = Histogram(
    "tandem_stream_pause_seconds",
    "The longest time between two messages of a choice; one observation for each.",
    REQUEST,
)
TOTAL = Histogram(
    "tandem_request_seconds",
    "From arrival to the last token, of requests that ended `ok`.",
    REQUEST,
)
PROMPT_TOKENS = Counter(
    "tandem_prompt_tokens_total", "Prompt tokens of admitted requests, cached ones too.", REQUEST
)
ANSWER_TOKENS = Counter(
    "tandem_answer_tokens_total", "Tokens of choices that ended, however they did.", REQUEST
)
GENERATED = Counter("tandem_generated_tokens_total", "Tokens received for clients, as they come.")
ROWS_LOST = Counter(
    "tandem_request_log_lost_total", "Rows of requests that the files of the request log lack."
)
TIME_TO_CANCEL = Histogram(
    "tandem_time_to_cancel_seconds",
    "From a request's abandonment until both pools and the transfer hold nothing of it.",
)
REPLICAS = Gauge("tandem_replicas", "Living replicas, as this router knows them.", ("role",))
JOINED = Counter("tandem_replicas_joined_total", "Replicas that this router saw come.", ("role",))
LOST = Counter("tandem_replicas_lost_total", "Replicas that this router saw go.", ("role",))
SCORED = Counter("tandem_scored_tokens_total", "Tokens of given texts that were scored.", REQUEST)
