"""Prometheus' own tool over the chart's alerts; its tests are skipped where there is none."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.alert_cases import Samples
from tests.helm.chart import CHART

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="there is no promtool: install Prometheus"
)
RULES_FILE = CHART / "files" / "alerts" / "tandem.yaml"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for rule in yaml.safe_load(RULES_FILE.read_text())["groups"][0]["rules"]
}


def promtool(*arguments: str | Path) -> str:
    """What it says; AssertionError if it finds a fault."""
    command = [str(PROMTOOL), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_rules(folder: Path, given: Samples, **expected: list[dict[str, Any]]) -> None:
    """AssertionError if over these series a rule does otherwise than `alert_rule_test` and
    `promql_expr_test` say.

    https://prometheus.io/docs/prometheus/latest/configuration/unit_testing_rules/
    """
    series = [
        {"series": text, "values": " ".join("_" if v is None else f"{v:g}" for v in values)}
        for text, values in given.items()
    ]
    document = {
        "rule_files": [str(RULES_FILE)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, **expected}],
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump(document))
    promtool("test", "rules", file)


def alerts(name: str, minute: int, *labels: dict[str, str]) -> dict[str, Any]:
    """That the alert fires in that minute once for each of these labels, with what it tells."""
    rule = RULES[name]
    return {
        "eval_time": f"{minute}m",
        "alertname": name,
        "exp_alerts": [
            {
                "exp_labels": {**one, **rule["labels"]},
                "exp_annotations": {
                    key: _told(text, one) for key, text in rule["annotations"].items()
                },
            }
            for one in labels
        ],
    }


def _told(text: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels[found[1]], text)
