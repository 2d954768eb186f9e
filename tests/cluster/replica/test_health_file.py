"""The file that probes look at, with the command that the chart gives them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cluster.replica.health_file import HealthFile
from tests.helm.chart import example_objects, groups


def ready(folder: Path) -> bool:
    """What the chart's readiness probe says, with a folder of the test's."""
    (container,) = groups(example_objects("laptop-kind"))["decode"]["template"]["spec"][
        "containers"
    ]
    (given,) = [e["value"] for e in container["env"] if e["name"] == "TANDEM_HEALTH_DIR"]
    probe = container["readinessProbe"]["exec"]["command"]
    assert any(given in word for word in probe)
    here = [word.replace(given, str(folder)) for word in probe]
    return subprocess.run(here, check=False).returncode == 0


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


def test_without_a_folder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TANDEM_HEALTH_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    health = HealthFile.from_environment("decode#a")
    health.touch()
    assert not list(tmp_path.iterdir())
    (tmp_path / "decode_a").touch()
    health.remove()
    assert [file.name for file in tmp_path.iterdir()] == ["decode_a"]


def test_a_folder_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TANDEM_HEALTH_DIR", str(tmp_path / "file"))
    with pytest.raises(OSError, match="file"):
        HealthFile.from_environment("decode#a").touch()
