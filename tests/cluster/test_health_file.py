"""The file that probes look at, with the command that the chart gives them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cluster.health_file import HealthFile

# The chart's readiness probe, with a folder of the test's.
PROBE = "test -n \"$(find {} -type f -newermt '-15 seconds' -print -quit)\""


def ready(folder: Path) -> bool:
    return subprocess.run(["bash", "-c", PROBE.format(folder)], check=False).returncode == 0


def test_a_pod_is_ready_while_a_replica_in_it_is_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_HEALTH_DIR", str(tmp_path))
    health = HealthFile.from_environment("decode#a/b")
    assert not ready(tmp_path)
    health.touch()
    assert ready(tmp_path)
    (file,) = tmp_path.iterdir()
    subprocess.run(["touch", "-d", "1 minute ago", str(file)], check=True)
    assert not ready(tmp_path)
    health.touch()
    assert ready(tmp_path)
    health.remove()
    health.remove()
    assert not ready(tmp_path)


def test_without_a_folder_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TANDEM_HEALTH_DIR", raising=False)
    health = HealthFile.from_environment("decode#a")
    health.touch()
    health.remove()
