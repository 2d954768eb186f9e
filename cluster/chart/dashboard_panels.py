"""The panels of the Grafana dashboard: what each asks for, by declared metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.chart.dashboard_queries import (
    Query,
    highest,
    level,
    mean,
    per_second,
    quantile,
    share,
)
from cluster.chart.metric_catalogue import RAY_PREFIX, all_metrics, unit
from cluster.telemetry import replica_metrics as replica
from cluster.telemetry import router_metrics as router
from cluster.telemetry.connection_metrics import REFUSED_CONNECTIONS
from cluster.telemetry.requests.row_metrics import FAILOVER_PAUSE, STRAGGLER
from decode_pool import metrics as decode
from engine import metrics as engine
from engine.telemetry import Counter, Gauge, Histogram, Metric
from kv_transfer import metrics as transfer
from prefill_pool import metrics as prefill


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph; `unit` is Grafana's name of one."""

    title: str
    unit: str
    queries: Sequence[Query]


PANELS = (
    Panel(
        "Time to the first token",
        "s",
        (quantile(router.TTFT, 0.5, "endpoint"), quantile(router.TTFT, 0.95, "endpoint")),
    ),
    Panel(
        "Time to the first meaningful token",
        "s",
        (quantile(router.TTFMT, 0.5, "endpoint"), quantile(router.TTFMT, 0.95, "endpoint")),
    ),
    Panel(
        "Time to the first token over its budget",
        "percentunit",
        (quantile(router.TTFT_OF_BUDGET, 0.95, "endpoint"),),
    ),
    Panel("Wait at the socket", "s", (quantile(router.ARRIVAL_LAG, 0.5, "front_end", legend=""),)),
    Panel("Where the time goes, mean", "s", (mean(router.STAGE, "stage", legend=""),)),
    Panel(
        "Time per token",
        "s",
        (
            quantile(router.INTER_TOKEN_LATENCY, 0.5, "endpoint"),
            quantile(router.INTER_TOKEN_LATENCY, 0.95, "endpoint"),
            quantile(router.STREAM_PAUSE, 0.95, "endpoint", legend="longest pause p95"),
        ),
    ),
    Panel(
        "Total time",
        "s",
        (quantile(router.TOTAL, 0.5, "endpoint"), quantile(router.TOTAL, 0.95, "endpoint")),
    ),
    Panel("Requests by outcome", "reqps", (per_second(router.REQUESTS, "outcome"),)),
    Panel("Requests by tenant", "reqps", (per_second(router.REQUESTS, "tenant"),)),
    Panel("Refusals", "reqps", (per_second(router.REFUSED, "endpoint", "reason"),)),
    Panel(
        "Canaries: requests",
        "reqps",
        (per_second(router.ARM_REQUESTS, "endpoint", "arm", "outcome"),),
    ),
    Panel(
        "Canaries: first tokens",
        "s",
        (quantile(router.ARM_TTFT, 0.95, "endpoint", "arm"),),
    ),
    Panel(
        "Canaries rolled back, routers that share caps",
        "short",
        (
            highest(router.ROLLED_BACK, "endpoint"),
            highest(router.SHARING),
            highest(router.ROUTERS),
        ),
    ),
    Panel(
        "Errors of the front ends",
        "reqps",
        (per_second(router.FRONT_END_ERRORS, "front_end", "error"),),
    ),
    Panel(
        "Connections refused",
        "reqps",
        (per_second(REFUSED_CONNECTIONS, "listener", "reason"),),
    ),
    Panel(
        "In the routers",
        "short",
        (level(router.RUNNING, legend="running"), level(router.WAITING, legend="waiting")),
    ),
    Panel(
        "Predicted over actual TTFT",
        "none",
        tuple(quantile(router.PREDICTION, part, "endpoint") for part in (0.05, 0.5, 0.95)),
    ),
    Panel("Time to cancel", "s", (quantile(router.TIME_TO_CANCEL, 0.95),)),
    Panel(
        "Tokens per second",
        "short",
        (
            per_second(engine.PROMPT_TOKENS, "pool", legend="prompt"),
            per_second(decode.TOKENS, legend="decode"),
            per_second(router.GENERATED, legend="to clients"),
            per_second(router.SCORED, legend="scored"),
        ),
    ),
    Panel(
        "Prefill: wait and work, p95",
        "s",
        (
            quantile(prefill.QUEUE_WAIT, 0.95, "lane", legend="queue"),
            quantile(prefill.PREFILL_TIME, 0.95, "lane", legend="prefill"),
        ),
    ),
    Panel("Predicted queue of each replica", "s", (level(router.PREDICTED_QUEUE, "replica"),)),
    Panel(
        "Decode batch",
        "short",
        (
            mean(decode.BATCH, legend="requests in a step, mean"),
            level(replica.BATCH_LIMIT, "replica", legend="limit"),
        ),
    ),
    Panel("Decode occupancy", "percentunit", (level(replica.OCCUPANCY, "role", "replica"),)),
    Panel(
        "Decode step and inter-token latency, p95",
        "s",
        (
            quantile(decode.STEP_TIME, 0.95, legend="step"),
            quantile(decode.INTER_TOKEN_LATENCY, 0.95, legend="inter-token latency"),
        ),
    ),
    Panel(
        "Waiting and running",
        "short",
        (
            level(replica.WAITING, "role", "replica", legend="waiting"),
            level(replica.ACTIVE, "role", "replica", legend="running"),
        ),
    ),
    Panel("KV blocks", "short", (level(replica.BLOCKS, "role", "state"),)),
    Panel(
        "Prefix hits",
        "percentunit",
        (share(engine.PREFIX_HIT_TOKENS, engine.PREFIX_LOOKUP_TOKENS, "pool"),),
    ),
    Panel(
        "Evictions and preemptions per second",
        "short",
        (
            per_second(engine.PREFIX_EVICTIONS, "pool", legend="evictions"),
            per_second(decode.PREEMPTIONS, legend="preemptions"),
        ),
    ),
    Panel(
        "Hand-over, p95",
        "s",
        (
            quantile(decode.TRANSFER_TIME, 0.95, legend="exposed transfer"),
            quantile(decode.ADMISSION_WAIT, 0.95, legend="wait for blocks"),
        ),
    ),
    Panel(
        "Part of its steps in which a request is the straggler",
        "percentunit",
        (quantile(STRAGGLER, 0.95, "endpoint"),),
    ),
    Panel("Failover pause", "s", (quantile(FAILOVER_PAUSE, 0.95, "endpoint"),)),
    Panel("KV transferred", "Bps", (per_second(decode.TRANSFER_BYTES, legend="bytes"),)),
    Panel(
        "Transfers and links",
        "ops",
        (
            per_second(transfer.TRANSFERS, "outcome"),
            per_second(transfer.LINKS_BROKEN, legend="links broken"),
            per_second(router.FAILOVERS, "reason", legend="failovers"),
            per_second(router.RESUMED, legend="streams resumed"),
            per_second(router.STREAMS_TAKEN_OVER, legend="streams taken over"),
            per_second(decode.LOCAL_PREFILLS, legend="local prefills"),
        ),
    ),
    Panel(
        "Replicas",
        "short",
        # Every router counts all of them.
        (
            highest(router.REPLICAS, "role"),
            highest(router.DESIRED, "pool", legend="desired"),
        ),
    ),
    Panel(
        "Tokens computed again per second",
        "ops",
        (per_second(decode.RECOMPUTED_TOKENS, "reason"),),
    ),
    Panel("Slowest start, by stage", "s", (highest(replica.START, "role", "stage"),)),
    Panel(
        "Faults per second",
        "ops",
        (
            per_second(router.LOST, "role", legend="replicas lost"),
            per_second(prefill.STEP_FAILURES, legend="prefill steps"),
            per_second(decode.STEP_FAILURES, legend="decode steps"),
            per_second(router.ROWS_LOST, legend="rows of the request log lost"),
        ),
    ),
)


# Metrics without a panel, because another metric shows the same.
REPEATED = (router.PROMPT_TOKENS, router.ANSWER_TOKENS, router.JOINED)
_UNITS = {"seconds": "s", "bytes": "bytes", "ratio": "percentunit"}


def panels() -> list[Panel]:
    """All panels. A metric that no panel above asks for gets one of its own, at the end."""
    asked = " ".join(query.expr for panel in PANELS for query in panel.queries)
    known = {metric.name for metric in REPEATED}
    rest = [one for one in all_metrics() if one.name not in known | _names(asked)]
    return [*PANELS, *map(_own_panel, rest)]


def _names(expressions: str) -> set[str]:
    """The metrics that these expressions read."""
    return {one.name for one in all_metrics() if RAY_PREFIX + one.name in expressions}


def _own_panel(metric: Metric) -> Panel:
    if isinstance(metric, Histogram):
        queries = (quantile(metric, 0.5), quantile(metric, 0.95))
        return Panel(metric.name, _UNITS.get(unit(metric), "short"), queries)
    if isinstance(metric, Counter):
        return Panel(metric.name, "ops", (per_second(metric, *metric.labels),))
    assert isinstance(metric, Gauge)
    return Panel(metric.name, _UNITS.get(unit(metric), "short"), (level(metric, *metric.labels),))
