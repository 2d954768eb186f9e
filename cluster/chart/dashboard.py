"""The Grafana dashboard, made from the metrics that the code declares.

    python -m cluster.chart.dashboard > helm/tandem/files/dashboards/tandem.json

It names the series as Prometheus reads them from Ray, in the Grafana that Ray's dashboard embeds
and in any other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from cluster.chart.dashboard_panels import Panel, panels
from cluster.chart.dashboard_queries import CHOSEN
from cluster.chart.metric_catalogue import RAY_PREFIX
from cluster.telemetry import router_metrics as router

UID = "tandem"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT = 8, 8


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
        "panels": [_panel(index, panel) for index, panel in enumerate(panels())],
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
