"""Every metric of Tandem, and its name where Prometheus reads it from Ray."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module

from cluster.telemetry.backends import EXACT_SUM
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


@dataclass(frozen=True, slots=True)
class Source:
    """A module that declares metrics, and the process that counts them."""

    module: str
    title: str
    where: str

    def metrics(self) -> list[Metric]:
        """The metrics of the module, in the order of their declarations."""
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
    Source(
        "cluster.telemetry.connection_metrics",
        "Connections",
        "Counted in each router (`http`, `internal`) and replica (`internal`).",
    ),
    Source(
        "cluster.telemetry.requests.row_metrics",
        "Rows of requests",
        "Counted in each router, when a request ends.",
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


def exact_sum(metric: Metric) -> str:
    """The series of a histogram's sum that comes from Ray; `_sum` there is a guess."""
    return f"{RAY_PREFIX}{metric.name}{EXACT_SUM}_total"


def ray_samples(metric: Metric) -> dict[str, tuple[str, ...]]:
    """The series of a metric as Prometheus reads them from Ray, each with its labels."""
    found = {RAY_PREFIX + name: labels for name, labels in samples(metric).items()}
    return found | ({exact_sum(metric): metric.labels} if metric.kind == "histogram" else {})


def unit(metric: Metric) -> str:
    """The unit at the end of the metric's name; a metric without a unit is a count."""
    return _UNITS.get(metric.name.removesuffix("_total").rpartition("_")[2], "count")
