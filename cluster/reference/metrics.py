"""docs/reference/metrics.md: every metric, from where it is declared."""

from __future__ import annotations

from cluster.chart.metric_catalogue import SOURCES, Source, unit
from cluster.reference.markdown import code, table

_INTRODUCTION = """\
# Metrics

`make reference` writes this page from the code. The page
[Watch status, logs and metrics](../howto/watch-status-logs-metrics.md) says where to begin.

Units are base units, and the name ends in them; counters end in `_total`. A router's own page
(`GET /metrics`) has what it counts under these names. Every process exports through Ray, with the
prefix `ray_`: from Ray's metrics endpoint come `ray_tandem_requests_total`, and of a histogram such
as `tandem_ttft_seconds` the series `ray_tandem_ttft_seconds_bucket` (with `le`), `…_sum`, `…_count`
and `…_exact_sum_total`. Ray computes `…_sum` from the middles of the buckets. Ray adds labels of
its own, such as `WorkerId` and `NodeAddress`: sum them away. The alerts and the dashboard of the
chart use Ray's names.

No label has a request's id. `endpoint` and `lane` are configured ones, or `other` for a request
that named an endpoint which is not there. `tenant` is one of at most `router.metric_tenants` names,
of which `default` and the configured ones come first; all other tenants are `other`. Without
API keys it is always `default`. `pool` is `prefill` or `decode`; `role` also `both` or `router`;
`replica` is a replica's id as in `tandem status`.
"""
_HEAD = ("metric", "type", "unit", "labels", "meaning")


def page() -> str:
    """The whole page."""
    return "\n".join([_INTRODUCTION, *map(_section, SOURCES)])


def _section(source: Source) -> str:
    rows = [
        (
            code(metric.name),
            metric.kind,
            unit(metric),
            ", ".join(map(code, metric.labels)),
            metric.description,
        )
        for metric in source.metrics()
    ]
    return f"## {source.title}\n\n{source.where}\n\n{table(_HEAD, rows)}"
