"""Queries of the dashboard, made from the declared metrics and no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.chart.metric_catalogue import RAY_PREFIX, exact_sum
from engine.telemetry import Counter, Gauge, Histogram, Metric

# The variables above the panels; each is a label of the metrics that it selects.
CHOSEN = ("endpoint", "tenant")
_RANGE = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and the legend of its lines."""

    expr: str
    legend: str


def per_second(metric: Counter | Histogram, *by: str, legend: str = "") -> Query:
    """The rise of a counter per second, or the observations of a histogram per second."""
    ending = "_count" if metric.kind == "histogram" else ""
    return Query(
        _sum(metric, by, f"rate({_selected(metric, ending)}[{_RANGE}])"), _legend(by, legend)
    )


def quantile(metric: Histogram, part: float, *by: str, legend: str = "") -> Query:
    """A quantile of a histogram."""
    buckets = _sum(metric, (*by, "le"), f"rate({_selected(metric, '_bucket')}[{_RANGE}])")
    name = legend or f"p{part * 100:g}"
    return Query(f"histogram_quantile({part}, {buckets})", _legend(by, name))


def mean(metric: Histogram, *by: str, legend: str = "mean") -> Query:
    """The mean of a histogram's observations."""
    total, count = (
        _sum(metric, by, f"rate({series}{_chosen(metric)}[{_RANGE}])")
        for series in (exact_sum(metric), f"{RAY_PREFIX}{metric.name}_count")
    )
    return Query(f"{total} / {count}", _legend(by, legend))


def level(metric: Gauge, *by: str, legend: str = "") -> Query:
    """A gauge, summed over all labels but those in `by`."""
    return Query(_sum(metric, by, _selected(metric)), _legend(by, legend))


def highest(metric: Gauge, *by: str, legend: str = "") -> Query:
    """The largest value of a gauge that several processes show for the same thing."""
    return Query(_by("max", metric, by, _selected(metric)), _legend(by, legend))


def share(part: Counter, whole: Counter, *by: str) -> Query:
    """The rise of one counter over the rise of another."""
    return Query(f"{per_second(part, *by).expr} / {per_second(whole, *by).expr}", _legend(by, ""))


def _selected(metric: Metric, ending: str = "") -> str:
    """A metric's series, of the endpoints and tenants selected above the panels."""
    return f"{RAY_PREFIX}{metric.name}{ending}{_chosen(metric)}"


def _chosen(metric: Metric) -> str:
    chosen = ",".join(f'{label}=~"${label}"' for label in CHOSEN if label in metric.labels)
    return f"{{{chosen}}}" if chosen else ""


def _sum(metric: Metric, by: Sequence[str], expr: str) -> str:
    return _by("sum", metric, by, expr)


def _by(combined: str, metric: Metric, by: Sequence[str], expr: str) -> str:
    if unknown := set(by) - {*metric.labels, "le"}:
        raise ValueError(f"{metric.name} has no label {', '.join(sorted(unknown))}")
    return f"{combined} by ({', '.join(by)}) ({expr})" if by else f"{combined}({expr})"


def _legend(by: Sequence[str], name: str) -> str:
    return " ".join([*(f"{{{{{label}}}}}" for label in by), *([name] if name else [])])
