"""The catalogue has every metric, and the code keeps the rules for them."""

from __future__ import annotations

import re
from pathlib import Path

from cluster.chart.metric_catalogue import SOURCES, all_metrics, ray_samples, samples, unit

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("cluster", "decode_pool", "engine", "kv_transfer", "prefill_pool")


def test_every_module_that_declares_metrics_is_in_it() -> None:
    declaring = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"^\w+ = (Counter|Gauge|Histogram)\(", path.read_text(), re.MULTILINE)
    }
    assert declaring == {source.module for source in SOURCES}


def test_no_label_can_have_as_many_values_as_there_are_requests() -> None:
    bounded = {"arm", "endpoint", "lane", "tenant", "outcome", "reason", "stage", "pool", "role"}
    for metric in all_metrics():
        assert set(metric.labels) <= bounded | {
            "replica",
            "state",
            "listener",
            "front_end",
            "error",
        }, metric.name


def test_names_end_in_their_unit_where_they_have_one() -> None:
    for metric in all_metrics():
        assert "milli" not in metric.name
        if metric.kind == "histogram":
            assert unit(metric) != "count", metric.name
        assert metric.description.endswith("."), metric.name
        assert "|" not in metric.description, metric.name


def test_a_histogram_is_three_series() -> None:
    histogram = next(metric for metric in all_metrics() if metric.name == "tandem_stage_seconds")
    labels = ("endpoint", "lane", "tenant", "stage")
    assert samples(histogram) == {
        "tandem_stage_seconds_bucket": (*labels, "le"),
        "tandem_stage_seconds_sum": labels,
        "tandem_stage_seconds_count": labels,
    }
    through_ray = {"ray_" + name: labels for name, labels in samples(histogram).items()}
    exact = {"ray_tandem_stage_seconds_exact_sum_total": labels}
    assert ray_samples(histogram) == through_ray | exact
