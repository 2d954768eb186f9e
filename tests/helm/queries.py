"""The queries of the chart's boards, alerts and drills, and what each reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import promql_parser as parser

from tests.helm.chart import CHART
from tests.helm.promtool import RULES

DRILLS = CHART.parents[1] / "docs" / "howto" / "answer-an-alert.md"
# What Grafana makes of $__rate_interval for a source that names no interval: four times 15 s.
RATE_INTERVAL = "1m"
_COMPARISONS = {"<", ">", "<=", ">=", "==", "!="}


def of_panels(dashboard: dict[str, Any], chosen: str = ".*") -> Iterator[tuple[str, str]]:
    """Where each query of a dashboard is, and the query as Grafana sends it with that choice."""
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", RATE_INTERVAL)
            yield f"{panel['title']}-{target['refId']}", re.sub(r"\$\w+", chosen, text)


def of_alerts() -> Iterator[tuple[str, str]]:
    for alert, rule in RULES.items():
        yield alert, rule["expr"]


def of_drills() -> Iterator[tuple[str, str]]:
    """The code on the page of the drills that names a metric."""
    for text in re.findall(r"`([^`]*tandem_[^`]*)`", DRILLS.read_text()):
        yield f"{DRILLS.name}: {text}", " ".join(text.split())


def compared(text: str) -> list[str]:
    """The sides of the comparisons in an expression, which have values in the calm, too."""
    return list(_sides(parser.parse(text)))


def metrics_of(text: str) -> set[str]:
    """The series that an expression reads."""
    return set(re.findall(r"\bray_tandem_\w+", text))


def _sides(node: Any) -> Iterator[str]:
    match node:
        case parser.BinaryExpr() if str(node.op) in _COMPARISONS:
            for side in (node.lhs, node.rhs):
                if not isinstance(side, parser.NumberLiteral):
                    yield str(side.prettify())
        case parser.BinaryExpr():
            yield from _sides(node.lhs)
            yield from _sides(node.rhs)
        case parser.ParenExpr():
            yield from _sides(node.expr)
