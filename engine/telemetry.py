"""Metrics: declared once, at module level. The process's start chooses their backends.

    PREFILL_SECONDS = Histogram("tandem_prefill_seconds", "Time in the forward pass.", ("role",))
    PREFILL_SECONDS.observe(0.031, role="prefill")

Without a backend a recording is one comparison. Names begin with `tandem_`; units are base units
(seconds, bytes, tokens); counters end in `_total`. Safe to use from any thread.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

LATENCY_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)

Kind = Literal["counter", "gauge", "histogram"]
Sink = Callable[[float, tuple[str, ...]], None]


class Backend(Protocol):
    """A system that takes recordings."""

    def attach(self, metric: Metric) -> Sink:
        """Make the metric known; returns a function that takes (value, label values)."""
        ...


class Metric:
    """A declared metric. Use Counter, Gauge or Histogram."""

    kind: Kind

    def __init__(
        self,
        name: str,
        description: str,
        labels: Sequence[str] = (),
        buckets: Sequence[float] = (),
    ) -> None:
        if not re.fullmatch(r"tandem_[a-z][a-z0-9_]*", name):
            raise ValueError(f"the metric name {name!r} does not begin with tandem_")
        if (self.kind == "counter") != name.endswith("_total"):
            raise ValueError(f"{name}: counters, and only counters, end in _total")
        self.name = name
        self.description = description
        self.labels = tuple(labels)
        self.buckets = tuple(buckets)
        self._sinks: tuple[Sink, ...] = ()
        _REGISTRY.declare(self)

    def _record(self, value: float, labels: dict[str, str]) -> None:
        sinks = self._sinks
        if not sinks:
            return
        if len(labels) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {tuple(labels)}")
        values = tuple(map(labels.__getitem__, self.labels))
        for sink in sinks:
            sink(value, values)


class Counter(Metric):
    """A count that only rises."""

    kind = "counter"

    def inc(self, value: float = 1.0, /, **labels: str) -> None:
        """Add to the count; the labels are the declared ones."""
        self._record(value, labels)


class Gauge(Metric):
    """A value that rises and falls."""

    kind = "gauge"

    def set(self, value: float, /, **labels: str) -> None:
        """Set the value; the labels are the declared ones."""
        self._record(value, labels)


class Histogram(Metric):
    """A distribution of values; `buckets` are upper bounds above 0, without infinity."""

    kind = "histogram"

    def __init__(
        self,
        name: str,
        description: str,
        labels: Sequence[str] = (),
        buckets: Sequence[float] = LATENCY_BUCKETS,
    ) -> None:
        # Ray's metrics API refuses others, at start.
        if list(buckets) != sorted(set(buckets)) or not buckets or buckets[0] <= 0:
            raise ValueError(f"{name}: buckets must rise from above 0")
        super().__init__(name, description, labels, buckets)

    def observe(self, value: float, /, **labels: str) -> None:
        """Add one observation; the labels are the declared ones."""
        self._record(value, labels)


class _Registry:
    """All metrics of the process and the backends they go to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._metrics: dict[str, Metric] = {}
        self._backends: list[tuple[Backend, dict[str, Sink]]] = []

    def declare(self, metric: Metric) -> None:
        with self._lock:
            if metric.name in self._metrics:
                raise ValueError(f"the metric {metric.name} is declared twice")
            self._metrics[metric.name] = metric
            for backend, sinks in self._backends:
                sinks[metric.name] = backend.attach(metric)
            self._connect(metric)

    def forget(self, metric: Metric) -> None:
        with self._lock:
            del self._metrics[metric.name]

    def install(self, backend: Backend) -> None:
        with self._lock:
            if any(known is backend for known, _ in self._backends):
                return
            sinks = {name: backend.attach(metric) for name, metric in self._metrics.items()}
            self._backends.append((backend, sinks))
            for metric in self._metrics.values():
                self._connect(metric)

    def uninstall(self, backend: Backend) -> None:
        with self._lock:
            self._backends = [entry for entry in self._backends if entry[0] is not backend]
            for metric in self._metrics.values():
                self._connect(metric)

    def _connect(self, metric: Metric) -> None:
        metric._sinks = tuple(sinks[metric.name] for _, sinks in self._backends)


_REGISTRY = _Registry()


def install(backend: Backend) -> None:
    """Send all recordings, of metrics declared already or later, to this backend too."""
    _REGISTRY.install(backend)


def uninstall(backend: Backend) -> None:
    """Stop sending recordings to this backend."""
    _REGISTRY.uninstall(backend)


def forget(metric: Metric) -> None:
    """Undo a declaration; for tests that declare metrics of their own."""
    _REGISTRY.forget(metric)
