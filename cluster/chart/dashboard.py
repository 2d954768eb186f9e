"""The Grafana dashboard, made from the metrics that the code declares.

    python -m cluster.chart.dashboard > helm/tandem/files/dashboards/tandem.json

It names the series as Prometheus reads them from Ray, in the Grafana that Ray's dashboard embeds
and in any other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.chart.dashboard_queries import (
    CHOSEN,
    Query,
    highest,
    level,
    mean,
    per_second,
    quantile,
    share,
)
from cluster.chart.metric_catalogue import RAY_PREFIX
from cluster.telemetry import replica_metrics as replica
from cluster.telemetry import router_metrics as router
from decode_pool import metrics as decode
from engine import metrics as engine
from kv_transfer import metrics as transfer
from prefill_pool import metrics as prefill

UID = "tandem"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT = 8, 8


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
        "First tokens over their budget",
        "percentunit",
        (quantile(router.TTFT_OF_BUDGET, 0.95, "endpoint"),),
    ),
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
        "In the routers",
        "short",
        (level(router.RUNNING, legend="running"), level(router.WAITING, legend="waiting")),
    ),
    Panel(
        "Predicted over actual TTFT",
        "none",
        tuple(quantile(router.PREDICTION, part, "endpoint") for part in (0.05, 0.5, 0.95)),
    ),
    Panel(
        "Cancels",
        "s",
        (
            quantile(router.TIME_TO_CANCEL, 0.95, legend="time to cancel p95"),
            per_second(router.TIME_TO_CANCEL, legend="cancels per second"),
        ),
    ),
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
    Panel("KV transferred", "Bps", (per_second(decode.TRANSFER_BYTES, legend="bytes"),)),
    Panel(
        "Transfers and links",
        "ops",
        (
            per_second(transfer.TRANSFERS, "outcome"),
            per_second(transfer.LINKS_BROKEN, legend="links broken"),
            per_second(router.FAILOVERS, "reason", legend="failovers"),
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
    Panel("Slowest start, by stage", "s", (highest(replica.START, "role", "stage"),)),
    Panel(
        "Faults per second",
        "ops",
        (
            per_second(router.LOST, "role", legend="replicas lost"),
            per_second(prefill.STEP_FAILURES, legend="prefill steps"),
            per_second(decode.STEP_FAILURES, legend="decode steps"),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana's JSON model."""
    return {
        "uid": UID,
        "title": "Tandem",
        "tags": ["tandem"],
        "schemaVersion": 39,
        "timezone": "utc",
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": [_panel(index, panel) for index, panel in enumerate(PANELS)],
    }


def text() -> str:
    """The dashboard's file."""
    return json.dumps(dashboard(), indent=1) + "\n"


def _variables() -> Iterator[dict[str, Any]]:
    yield {
        "name": "datasource",
        "type": "datasource",
        "query": "prometheus",
        "label": "Prometheus",
    }
    for label in CHOSEN:
        yield {
            "name": label,
            "type": "query",
            "datasource": _SOURCE,
            "query": f"label_values({RAY_PREFIX}{router.REQUESTS.name}, {label})",
            "label": label.capitalize(),
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
            "refresh": 2,
        }


def _panel(index: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(index, 24 // _WIDTH)
    return {
        "id": index + 1,
        "title": panel.title,
        "type": "timeseries",
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "gridPos": {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": row * _HEIGHT},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query.expr, "legendFormat": query.legend}
            for number, query in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    sys.stdout.write(text())
