"""The dashboard lies where Ray's Grafana looks, or nowhere; it stops nobody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.chart.grafana_install import place_dashboard


@pytest.fixture(autouse=True)
def no_other_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_METRICS_GRAFANA_DASHBOARD_OUTPUT_DIR", raising=False)


def test_it_lies_beside_ray_s_own(tmp_path: Path) -> None:
    folder = tmp_path / "metrics" / "grafana" / "dashboards"
    folder.mkdir(parents=True)
    file = place_dashboard(tmp_path)
    assert file is not None
    assert file.parent == folder
    assert json.loads(file.read_text())["uid"] == "tandem"


def test_a_folder_that_ray_was_given_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_METRICS_GRAFANA_DASHBOARD_OUTPUT_DIR", str(tmp_path))
    file = place_dashboard(tmp_path / "session")
    assert file is not None
    assert file.parent == tmp_path


def test_without_ray_s_folder_nothing_is_written(tmp_path: Path) -> None:
    assert place_dashboard(tmp_path) is None
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to_is_no_failure(tmp_path: Path) -> None:
    folder = tmp_path / "metrics" / "grafana" / "dashboards"
    (folder / "tandem_grafana_dashboard.json").mkdir(parents=True)
    assert place_dashboard(tmp_path) is None
