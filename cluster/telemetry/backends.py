"""The backends of metrics: a Prometheus registry (for GET /metrics), and Ray's metrics API."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry

from engine.telemetry import Metric, Sink

log = logging.getLogger(__name__)

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST

# What a counter of a histogram's sum has after the histogram's name, before Ray's `_total`.
EXACT_SUM = "_exact_sum"

# Bound: how long a recording for Ray waits, which exports every few seconds.
_FLUSH_S = 0.5


class PrometheusBackend:
    """Keeps the metrics in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)

    def attach(self, metric: Metric) -> Sink:
        """Register the metric; see engine.telemetry.Backend."""
        arguments: dict[str, Any] = {"labelnames": metric.labels, "registry": self.registry}
        if metric.kind == "histogram":
            histogram = prometheus_client.Histogram(
                metric.name, metric.description, buckets=metric.buckets, **arguments
            )
            return _sink(histogram, "observe")
        if metric.kind == "gauge":
            gauge = prometheus_client.Gauge(metric.name, metric.description, **arguments)
            return _sink(gauge, "set")
        counter = prometheus_client.Counter(metric.name, metric.description, **arguments)
        return _sink(counter, "inc")

    def text(self) -> bytes:
        """All metrics in Prometheus' text format; its type is CONTENT_TYPE."""
        return prometheus_client.generate_latest(self.registry)


class RayBackend:
    """Sends the metrics through Ray. `api` is the module `ray.util.metrics`, given by the caller.

    Ray exports them from each node with its own prefix: `ray_tandem_…`. A recording costs Ray some
    20 µs, so counters are added up here, and gauges keep their last value, until `flush`. A thread
    of the backend flushes every `flush_s`. Ray passes a histogram on as counts of buckets, and
    takes the middle of its bucket for each value: its `_sum` is a guess. So each histogram has a
    counter of its sum, too.
    """

    def __init__(self, api: Any, flush_s: float = _FLUSH_S) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._counts: dict[tuple[Sink, tuple[str, ...]], float] = {}
        self._values: dict[tuple[Sink, tuple[str, ...]], float] = {}
        self._ended = threading.Event()
        flusher = threading.Thread(
            target=self._flush_often, args=(flush_s,), name="ray metrics", daemon=True
        )
        flusher.start()

    def attach(self, metric: Metric) -> Sink:
        """Declare the metric to Ray; see engine.telemetry.Backend."""
        names = metric.labels
        if metric.kind == "histogram":
            histogram = self._api.Histogram(
                metric.name, metric.description, boundaries=list(metric.buckets), tag_keys=names
            )
            add = self._counter(metric.name + EXACT_SUM, f"Sum of {metric.name}.", names)

            def observe(value: float, labels: tuple[str, ...]) -> None:
                histogram.observe(value, _tags(names, labels))
                add(value, labels)

            return observe
        if metric.kind == "gauge":
            gauge = self._api.Gauge(metric.name, metric.description, tag_keys=names)
            return self._last(lambda value, labels: gauge.set(value, _tags(names, labels)))
        # Ray adds the suffix itself.
        return self._counter(metric.name.removesuffix("_total"), metric.description, names)

    def _counter(self, name: str, description: str, names: tuple[str, ...]) -> Sink:
        counter = self._api.Counter(name, description, tag_keys=names)
        return self._sum(lambda value, labels: counter.inc(value, _tags(names, labels)))

    def flush(self) -> None:
        """Give Ray what was recorded since the last flush."""
        with self._lock:
            counts, self._counts = self._counts, {}
            values, self._values = self._values, {}
        for (record, labels), value in (*counts.items(), *values.items()):
            record(value, labels)

    def close(self) -> None:
        """Flush a last time, and no more. Idempotent."""
        self._ended.set()
        self.flush()

    def _sum(self, record: Sink) -> Sink:
        def add(value: float, labels: tuple[str, ...]) -> None:
            if value > 0:  # Ray refuses an increment of zero
                key = record, labels
                with self._lock:
                    self._counts[key] = self._counts.get(key, 0.0) + value

        return add

    def _last(self, record: Sink) -> Sink:
        def keep(value: float, labels: tuple[str, ...]) -> None:
            with self._lock:
                self._values[record, labels] = value

        return keep

    def _flush_often(self, flush_s: float) -> None:
        while not self._ended.wait(flush_s):
            try:
                self.flush()
            except Exception:
                log.exception("metrics could not be given to Ray")


def _sink(metric: Any, method: str) -> Sink:
    """Records by that method of the series of given labels.

    The library's own search for a series is slow beside a recording.
    """
    known: dict[tuple[str, ...], Callable[[float], None]] = {}

    def record(value: float, labels: tuple[str, ...]) -> None:
        found = known.get(labels)
        if found is None:
            series = metric.labels(*labels) if labels else metric
            found = known[labels] = getattr(series, method)
        found(value)

    return record


def _tags(names: tuple[str, ...], labels: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(names, labels, strict=True))
