"""Each alert fires when it should and is silent in the calm, over series that really exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as parser
import pytest
import yaml

from cluster.chart import dashboard as chart_dashboard
from cluster.chart import dashboard_panels
from cluster.chart.dashboard_queries import per_second
from cluster.chart.metric_catalogue import RAY_PREFIX, all_metrics, samples
from decode_pool import metrics as decode_metrics
from engine import telemetry
from engine.telemetry import Counter, Gauge, Histogram
from tests.helm.alert_cases import CALM, CASES, Case, Samples
from tests.helm.chart import CHART
from tests.helm.promql import Labels, Series, evaluate

RULES_FILE = CHART / "files" / "alerts" / "tandem.yaml"
RULES: list[dict[str, Any]] = yaml.safe_load(RULES_FILE.read_text())["groups"][0]["rules"]
SERIES = {
    RAY_PREFIX + name: {*labels, "WorkerId"}
    for metric in all_metrics()
    for name, labels in samples(metric).items()
}
IDS = [f"{case.alert}-{place}" for place, case in enumerate(CASES)]


def series_of(given: Samples) -> list[Series]:
    made = []
    for text, values in given.items():
        selector = parser.parse(text)
        labels = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
        pairs = [(60.0 * at, value) for at, value in enumerate(values) if value is not None]
        times_s, numbers = [time for time, _ in pairs], [value for _, value in pairs]
        made.append(Series({"__name__": selector.name, **labels}, times_s, numbers))
    return made


def last_minute(given: Samples) -> int:
    return max(len(values) for values in given.values()) - 1


def firing(given: Samples) -> dict[str, list[Labels]]:
    """The alerts that fire in the last minute, each with its series' labels."""
    series, end = series_of(given), last_minute(given)
    fire: dict[str, list[Labels]] = {}
    for rule in RULES:
        parsed, minutes = parser.parse(rule["expr"]), int(rule["for"].removesuffix("m"))
        active: set[Labels] | None = None
        for minute in range(end - minutes, end + 1):
            value = evaluate(parsed, series, 60.0 * minute)
            assert isinstance(value, dict)
            active = set(value) if active is None else active & set(value)
        if active:
            fire[rule["alert"]] = sorted(active, key=sorted)
    return fire


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_an_alert_fires_with_its_labels_and_no_other_does(case: Case) -> None:
    found = firing(case.fires)
    assert found.keys() == {case.alert, *case.also}
    assert [dict(labels) for labels in found[case.alert]] == [dict(case.labels)]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_an_alert_is_silent_where_it_nearly_fires(case: Case) -> None:
    assert case.alert not in firing(case.calm)


@pytest.mark.parametrize("given", CALM)
def test_nothing_fires_in_the_calm(given: Samples) -> None:
    assert firing(given) == {}


def test_no_series_at_all_is_calm() -> None:
    for rule in RULES:
        assert evaluate(rule["expr"], [], 3600.0) == {}


def test_every_alert_names_a_drill_which_names_a_screen() -> None:
    page = (CHART.parents[1] / "docs" / "howto" / "answer-an-alert.md").read_text()
    drills, anchors = dict[str, str](), dict[str, str]()
    for text in page.split("\n## ")[1:]:
        title, _, body = text.partition("\n")
        drills |= dict.fromkeys(title.split(", "), body)
        anchors |= dict.fromkeys(title.split(", "), title.lower().replace(", ", "-"))
    assert drills.keys() == {rule["alert"] for rule in RULES}
    for name, body in drills.items():
        assert re.search("tandem (top|requests|status|doctor)|console|dashboard", body), name
    runbooks = {rule["alert"]: rule["annotations"]["runbook"] for rule in RULES}
    assert runbooks == {
        name: f"docs/howto/answer-an-alert.md#{anchor}" for name, anchor in anchors.items()
    }


def test_every_alert_has_a_case() -> None:
    assert {case.alert for case in CASES} == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_tells_only_of_labels_that_it_has(rule: dict[str, Any]) -> None:
    told = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    (case, *_) = (case for case in CASES if case.alert == rule["alert"])
    assert told <= case.labels.keys()
    assert rule["labels"]["severity"] in ("warning", "critical")
    for text in re.findall(r"\btandem_\w+", json.dumps(rule["annotations"])):
        assert text in {metric.name for metric in all_metrics()}


def expressions() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in chart_dashboard.dashboard()["panels"]:
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", "5m")
            yield f"{panel['title']}-{target['refId']}", text


@pytest.mark.parametrize(("where", "text"), list(expressions()))
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


def test_the_dashboard_s_file_is_what_the_code_makes() -> None:
    file = CHART / "files" / "dashboards" / "tandem.json"
    assert file.read_text() == chart_dashboard.text(), "run `make helm-dashboard`"


def test_a_panel_cannot_use_a_label_that_a_metric_lacks() -> None:
    with pytest.raises(ValueError, match="no label tenant"):
        per_second(decode_metrics.TOKENS, "tenant")


def test_the_dashboard_covers_every_metric_but_those_that_repeat_another() -> None:
    shown = " ".join(text for where, text in expressions() if where not in ALERTS)
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


ALERTS = {rule["alert"] for rule in RULES}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_own_tool_agrees(tmp_path: Path) -> None:
    given = [*(case.fires for case in CASES), *(case.calm for case in CASES), *CALM]
    document = {
        "rule_files": [str(RULES_FILE)],
        "evaluation_interval": "1m",
        "tests": [promtool_test(one) for one in given],
    }
    file = tmp_path / "alerts_test.yaml"
    file.write_text(yaml.safe_dump(document))
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def promtool_test(given: Samples) -> dict[str, Any]:
    """The series, and what the evaluator here says of every alert."""
    found, end = firing(given), last_minute(given)
    return {
        "interval": "1m",
        "input_series": [
            {"series": text, "values": " ".join("_" if v is None else f"{v:g}" for v in values)}
            for text, values in given.items()
        ],
        "alert_rule_test": [
            {
                "eval_time": f"{end}m",
                "alertname": rule["alert"],
                "exp_alerts": [
                    alert_of(rule, dict(labels)) for labels in found.get(rule["alert"], [])
                ],
            }
            for rule in RULES
        ],
    }


def alert_of(rule: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
    def told(text: str) -> str:
        return re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels[found[1]], text)

    return {
        "exp_labels": {**labels, **rule["labels"]},
        "exp_annotations": {key: told(text) for key, text in rule["annotations"].items()},
    }
