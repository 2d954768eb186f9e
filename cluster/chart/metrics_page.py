"""Every metric that Tandem has, and the page about them that is made of it.

    python -m cluster.chart.metrics_page > docs/metrics.md

Also what each is called where Prometheus reads it from Ray.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module

from engine.telemetry import Metric

RAY_PREFIX = "ray_"
_UNITS = {
    "seconds": "seconds",
    "bytes": "bytes",
    "tokens": "tokens",
    "ratio": "ratio",
    "requests": "requests",
    "blocks": "blocks",
    "replicas": "replicas",
}
_INTRODUCTION = """\
# Metrics

Made from the code by `make metrics-page`; a test says when it is stale.

Units are base units, and the name ends in them; counters end in `_total`. A router's own page
(`GET /metrics`) has what it counts under these names. Every process exports through Ray, with the
prefix `ray_`: from Ray's metrics endpoint come `ray_tandem_requests_total`, and of a histogram such
as `tandem_ttft_seconds` the series `ray_tandem_ttft_seconds_bucket` (with `le`), `…_sum` and
`…_count`. Ray adds labels of its own, such as `WorkerId` and `NodeAddress`: sum them away. The
alerts and the dashboard of the chart use Ray's names.

No label has a request's id. `endpoint` and `lane` are configured ones, or `other` for a request
that named an endpoint which is not there. `tenant` is one of at most `router.metric_tenants` names,
of which `default` and the configured ones come first; all other tenants are `other`. Without
API keys it is always `default`. `pool` is `prefill` or `decode`; `role` also `both` or `router`;
`replica` is a replica's id as in `tandem status`.
"""


@dataclass(frozen=True, slots=True)
class Source:
    """A module that declares metrics, and where they are counted."""

    module: str
    title: str
    where: str

    def metrics(self) -> list[Metric]:
        """In the order in which they are declared."""
        found = vars(import_module(self.module)).values()
        return [value for value in found if isinstance(value, Metric)]


SOURCES = (
    Source(
        "cluster.telemetry.router_metrics",
        "Router",
        "Counted in each router, also on its `GET /metrics`.",
    ),
    Source(
        "cluster.telemetry.replica_metrics",
        "Replica",
        "Shown by each prefill and decode replica with every heartbeat.",
    ),
    Source("prefill_pool.metrics", "Prefill", "Counted in the prefill loop of a replica."),
    Source("decode_pool.metrics", "Decode", "Counted in the decode loop of a replica."),
    Source("engine.metrics", "Engine and prefix cache", "Counted in replicas of both pools."),
    Source("kv_transfer.metrics", "Hand-over", "Counted in replicas, where KV is moved."),
)


def all_metrics() -> Iterator[Metric]:
    """Every metric, source by source."""
    for source in SOURCES:
        yield from source.metrics()


def samples(metric: Metric) -> dict[str, tuple[str, ...]]:
    """The series of a metric, without Ray's prefix, each with its labels."""
    if metric.kind != "histogram":
        return {metric.name: metric.labels}
    return {
        f"{metric.name}_bucket": (*metric.labels, "le"),
        f"{metric.name}_sum": metric.labels,
        f"{metric.name}_count": metric.labels,
    }


def unit(metric: Metric) -> str:
    """The unit that the name ends in; what has none is a count."""
    return _UNITS.get(metric.name.removesuffix("_total").rpartition("_")[2], "count")


def page() -> str:
    """docs/metrics.md."""
    return "\n".join([_INTRODUCTION, *map(_section, SOURCES)])


def _section(source: Source) -> str:
    rows = "".join(_row(metric) for metric in source.metrics())
    head = "| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n"
    return f"## {source.title}\n\n{source.where}\n\n{head}{rows}"


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    cells = (f"`{metric.name}`", metric.kind, unit(metric), labels, metric.description)
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    sys.stdout.write(page())
