"""Each alert fires when it should and is silent in the calm, over series that really exist."""

from __future__ import annotations

import json
import re

import pytest

from cluster.chart.metric_catalogue import RAY_PREFIX, all_metrics
from tests.helm.alert_cases import CALM, CASES, Case, Samples
from tests.helm.chart import CHART
from tests.helm.promtool import (
    RULES,
    RULES_FILE,
    alerts,
    check_rules,
    needs_promtool,
    promtool,
)

IDS = [f"{case.alert}-{place}" for place, case in enumerate(CASES)]


@needs_promtool
def test_the_rules_are_sound() -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "rules", "--lint-fatal", RULES_FILE)


@needs_promtool
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_an_alert_fires_once_its_condition_held_and_no_other_does(case: Case, tmp_path) -> None:
    rule, labels = RULES[case.alert], dict(case.labels)
    first_true = case.minute - int(rule["for"].removesuffix("m"))
    condition = {
        "expr": f"count({rule['expr']})",
        "eval_time": f"{first_true}m",
        "exp_samples": [{"value": 1}],
    }
    fire = {case.alert, *case.also}
    check_rules(
        tmp_path,
        case.fires,
        promql_expr_test=[condition],
        alert_rule_test=[
            alerts(case.alert, case.minute - 1),
            *(alerts(name, case.minute, *([labels] if name in fire else [])) for name in RULES),
        ],
    )


@needs_promtool
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_an_alert_is_silent_where_it_nearly_fires(case: Case, tmp_path) -> None:
    # A counter that has just appeared with a value may be new.
    minutes = range(6, last_minute(case.calm) + 1)
    silent = [alerts(case.alert, minute) for minute in minutes]
    check_rules(tmp_path, case.calm, alert_rule_test=silent)


@needs_promtool
@pytest.mark.parametrize("given", CALM)
def test_nothing_fires_in_the_calm(given: Samples, tmp_path) -> None:
    silent = [alerts(name, last_minute(given)) for name in RULES]
    check_rules(tmp_path, given, alert_rule_test=silent)


def last_minute(given: Samples) -> int:
    return max(len(values) for values in given.values()) - 1


def test_every_alert_names_a_drill_which_names_a_screen() -> None:
    page = (CHART.parents[1] / "docs" / "howto" / "answer-an-alert.md").read_text()
    drills, anchors = dict[str, str](), dict[str, str]()
    for text in page.split("\n## ")[1:]:
        title, _, body = text.partition("\n")
        drills |= dict.fromkeys(title.split(", "), body)
        anchors |= dict.fromkeys(title.split(", "), title.lower().replace(", ", "-"))
    assert drills.keys() == RULES.keys()
    for name, body in drills.items():
        assert re.search("tandem (top|requests|status|doctor)|console|dashboard", body), name
    runbooks = {alert: rule["annotations"]["runbook"] for alert, rule in RULES.items()}
    assert runbooks == {
        name: f"docs/howto/answer-an-alert.md#{anchor}" for name, anchor in anchors.items()
    }


def test_the_page_lists_every_alert() -> None:
    page = (CHART.parents[1] / "docs" / "howto" / "grafana-and-alerts.md").read_text()
    rows = re.findall(r"^\| (`Tandem.*?) \|", page, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == RULES.keys()


def test_every_alert_has_a_case() -> None:
    assert {case.alert for case in CASES} == RULES.keys()


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_tells_only_of_labels_that_it_has(alert: str) -> None:
    told = json.dumps(RULES[alert]["annotations"])
    (case, *_) = (case for case in CASES if case.alert == alert)
    assert set(re.findall(r"\$labels\.(\w+)", told)) <= case.labels.keys()
    assert RULES[alert]["labels"]["severity"] in ("warning", "critical")
    for text in re.findall(r"\w*tandem_\w+", told):
        assert text in {RAY_PREFIX + metric.name for metric in all_metrics()}
