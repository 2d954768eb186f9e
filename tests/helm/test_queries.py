"""The boards, alerts and drills ask for series, labels and units that the code declares."""

from __future__ import annotations

import re
from typing import Any

import promql_parser as parser
import pytest

from cluster.chart import dashboard as chart_dashboard
from cluster.chart import dashboard_panels
from cluster.chart.dashboard_queries import per_second
from cluster.chart.metric_catalogue import RAY_PREFIX, all_metrics, ray_samples, samples
from decode_pool import metrics as decode_metrics
from engine import telemetry
from engine.telemetry import Counter, Gauge, Histogram
from tests.helm.alert_cases import CALM, CASES
from tests.helm.chart import CHART
from tests.helm.queries import DRILLS, metrics_of, of_alerts, of_drills, of_panels

SERIES = {
    name: {*labels, "WorkerId"}
    for metric in all_metrics()
    for name, labels in ray_samples(metric).items()
}
PANELS = list(of_panels(chart_dashboard.dashboard()))


@pytest.mark.parametrize(("where", "text"), [*PANELS, *of_alerts(), *of_drills()])
def test_expressions_use_series_and_labels_that_exist(where: str, text: str) -> None:
    assert check(parser.parse(text)), f"{where} asks for nothing"


def test_the_cases_are_made_of_series_that_exist() -> None:
    given = [*(case.fires for case in CASES), *(case.calm for case in CASES), *CALM]
    for text in {text for one in given for text in one}:
        check(parser.parse(text))


def check(node: Any) -> set[str]:
    """The labels that the series under an expression have in common; AssertionError if wrong."""
    match node:
        case parser.VectorSelector():
            assert node.name in SERIES, node.name
            asked = {matcher.name for matcher in node.matchers.matchers}
            assert asked <= SERIES[node.name], f"{node.name}: {asked}"
            return SERIES[node.name]
        case parser.MatrixSelector():
            return check(node.vector_selector)
        case parser.AggregateExpr():
            known, modifier = check(node.expr), node.modifier
            if modifier is not None:
                assert set(modifier.labels) <= known, f"{modifier.labels} of {known}"
            return known
        case parser.Call():
            if node.func.name == "histogram_quantile":
                assert "le" in check(node.args[1])
            return check(node.args[-1])
        case parser.ParenExpr():
            return check(node.expr)
        case parser.BinaryExpr():
            sides = [check(side) for side in (node.lhs, node.rhs)]
            return set.union(*sides)
        case parser.NumberLiteral():
            return set()
    raise AssertionError(f"unexpected {type(node).__name__}")


def test_the_pages_name_metrics_that_exist() -> None:
    names = {name for metric in all_metrics() for name in (metric.name, *samples(metric))}
    for page in sorted((CHART.parents[1] / "docs").rglob("*.md")):
        if page.parent.name != "decisions":
            named = re.findall(
                r"`(?:ray_)?(tandem_\w+_(?:total|seconds|ratio|requests|blocks|replicas))\b",
                page.read_text(),
            )
            assert set(named) <= names, page


def test_the_drills_name_panels_that_exist() -> None:
    named = re.findall(r"dashboard's\s\*([^*]+)\*", DRILLS.read_text())
    assert named
    titles = {panel.title for panel in dashboard_panels.panels()}
    assert {" ".join(name.split()) for name in named} <= titles


def test_the_dashboard_s_file_is_what_the_code_makes() -> None:
    file = CHART / "files" / "dashboards" / "tandem.json"
    assert file.read_text() == chart_dashboard.text(), "run `make helm-dashboard`"


def test_a_panel_cannot_use_a_label_that_a_metric_lacks() -> None:
    with pytest.raises(ValueError, match="no label tenant"):
        per_second(decode_metrics.TOKENS, "tenant")


def test_the_dashboard_covers_every_metric_but_those_that_repeat_another() -> None:
    shown = " ".join(text for _, text in PANELS)
    repeated = {metric.name for metric in dashboard_panels.REPEATED}
    for metric in all_metrics():
        assert (RAY_PREFIX + metric.name in shown) != (metric.name in repeated), metric.name


@pytest.mark.parametrize("kind", [Counter, Gauge, Histogram])
def test_a_metric_that_no_panel_asks_for_gets_one(kind, monkeypatch) -> None:
    name = "tandem_new_total" if kind is Counter else "tandem_new_seconds"
    new = kind(name, "Something new.", ("role",))
    monkeypatch.setattr(dashboard_panels, "all_metrics", lambda: [*all_metrics(), new])
    try:
        *before, last = dashboard_panels.panels()
    finally:
        telemetry.forget(new)
    assert before == list(dashboard_panels.PANELS)
    assert last.title == new.name
    assert all(RAY_PREFIX + new.name in query.expr for query in last.queries)


@pytest.mark.parametrize("panel", dashboard_panels.panels(), ids=lambda panel: panel.title)
def test_a_panel_s_unit_is_seconds_where_its_queries_are(panel) -> None:
    for query in panel.queries:
        times = [
            name
            for name in metrics_of(query.expr)
            if "_seconds" in name and not name.endswith("_count")
        ]
        assert bool(times) == (panel.unit == "s"), query.expr
