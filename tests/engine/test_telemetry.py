"""Metrics: declared once, recorded to every backend, or to none."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from cluster.telemetry.backends import PrometheusBackend, RayBackend
from engine import telemetry
from engine.telemetry import Counter, Gauge, Histogram, Metric, Sink


class Recording:
    """A backend that keeps what it is given."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float, tuple[str, ...]]] = []

    def attach(self, metric: Metric) -> Sink:
        return lambda value, labels: self.seen.append((metric.name, value, labels))


@pytest.fixture
def counter() -> Iterator[Counter]:
    metric = Counter("tandem_test_requests_total", "Requests.", ("role",))
    yield metric
    telemetry.forget(metric)


@pytest.fixture
def recording() -> Iterator[Recording]:
    backend = Recording()
    telemetry.install(backend)
    yield backend
    telemetry.uninstall(backend)


@pytest.fixture
def prometheus() -> Iterator[PrometheusBackend]:
    backend = PrometheusBackend()
    telemetry.install(backend)
    yield backend
    telemetry.uninstall(backend)


def test_without_a_backend_nothing_happens(counter: Counter) -> None:
    counter.inc(role="prefill")


def test_a_recording_reaches_every_backend(
    counter: Counter, recording: Recording, prometheus: PrometheusBackend
) -> None:
    counter.inc(2, role="prefill")
    assert recording.seen == [("tandem_test_requests_total", 2, ("prefill",))]
    assert b'tandem_test_requests_total{role="prefill"} 2.0' in prometheus.text()


def test_a_metric_declared_later_is_recorded_too(recording: Recording) -> None:
    gauge = Gauge("tandem_test_blocks", "Blocks.")
    try:
        gauge.set(3)
    finally:
        telemetry.forget(gauge)
    assert recording.seen == [("tandem_test_blocks", 3, ())]


def test_installing_twice_counts_once(counter: Counter, recording: Recording) -> None:
    telemetry.install(recording)
    counter.inc(role="decode")
    assert len(recording.seen) == 1


def test_prometheus_text_has_gauges_and_histograms(prometheus: PrometheusBackend) -> None:
    gauge = Gauge("tandem_test_waiting", "Waiting.", ("role",))
    histogram = Histogram("tandem_test_seconds", "Time.", buckets=(0.1, 1.0))
    try:
        gauge.set(4, role="prefill")
        histogram.observe(0.5)
        text = prometheus.text().decode()
    finally:
        telemetry.forget(gauge)
        telemetry.forget(histogram)
    assert 'tandem_test_waiting{role="prefill"} 4.0' in text
    assert 'tandem_test_seconds_bucket{le="0.1"} 0.0' in text
    assert 'tandem_test_seconds_bucket{le="1.0"} 1.0' in text


def test_wrong_labels_are_a_fault(counter: Counter, recording: Recording) -> None:
    with pytest.raises(ValueError, match="labels"):
        counter.inc(role="a", tenant="b")
    with pytest.raises(KeyError):
        counter.inc(rolle="a")
    assert recording.seen == []


@pytest.mark.parametrize("name", ["requests_total", "tandem_requests", "tandem_Requests_total"])
def test_names_follow_the_rules(name: str) -> None:
    with pytest.raises(ValueError, match=r"tandem_|_total"):
        Counter(name, "Requests.")


def test_a_gauge_does_not_look_like_a_counter_and_buckets_rise() -> None:
    with pytest.raises(ValueError, match="_total"):
        Gauge("tandem_blocks_total", "Blocks.")
    with pytest.raises(ValueError, match="rise"):
        Histogram("tandem_bad_seconds", "Time.", buckets=(2.0, 1.0))


def test_a_name_is_declared_once(counter: Counter) -> None:
    with pytest.raises(ValueError, match="twice"):
        Counter(counter.name, "Again.")


def test_threads_lose_no_count(counter: Counter, prometheus: PrometheusBackend) -> None:
    def work() -> None:
        for _ in range(2000):
            counter.inc(role="prefill")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert b'tandem_test_requests_total{role="prefill"} 8000.0' in prometheus.text()


class FakeRayMetric:
    def __init__(self, name: str, description: str, **options: object) -> None:
        self.name, self.options = name, options
        self.calls: list[tuple[float, dict[str, str]]] = []
        FakeRayApi.made.append(self)

    def inc(self, value: float, tags: dict[str, str]) -> None:
        assert value > 0
        self.set(value, tags)

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.calls.append((value, tags))

    observe = set


class FakeRayApi:
    made: list[FakeRayMetric] = []  # noqa: RUF012
    Counter = Gauge = Histogram = FakeRayMetric


def test_ray_gets_tags_and_names_without_the_suffix_it_adds(counter: Counter) -> None:
    backend = RayBackend(FakeRayApi)
    telemetry.install(backend)
    try:
        counter.inc(0, role="prefill")
        counter.inc(1, role="prefill")
        counter.inc(2, role="prefill")
    finally:
        telemetry.uninstall(backend)
        backend.close()
    made = next(metric for metric in FakeRayApi.made if metric.name == "tandem_test_requests")
    assert made.options == {"tag_keys": ("role",)}
    assert made.calls == [(3, {"role": "prefill"})]


def test_ray_gets_the_sum_of_a_histogram_as_a_counter() -> None:
    histogram = Histogram("tandem_test_seconds", "Time.", ("role",))
    backend = RayBackend(FakeRayApi)
    telemetry.install(backend)
    try:
        for seconds in (0.0, 0.5, 0.11):
            histogram.observe(seconds, role="prefill")
    finally:
        telemetry.uninstall(backend)
        telemetry.forget(histogram)
        backend.close()
    made = {metric.name: metric for metric in FakeRayApi.made}
    labels = {"role": "prefill"}
    assert made["tandem_test_seconds"].calls == [(0.0, labels), (0.5, labels), (0.11, labels)]
    assert made["tandem_test_seconds_exact_sum"].calls == [(0.61, labels)]


def test_importing_the_engine_s_metrics_loads_no_backend() -> None:
    code = "import sys, engine.telemetry; print({'ray', 'prometheus_client'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
