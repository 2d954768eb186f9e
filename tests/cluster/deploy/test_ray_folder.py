"""Ray's folder is the user's alone, short enough for sockets, and does not grow for ever."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from cluster.deploy.local_ray.folder import RayFolder, sweep
from cluster.deploy.local_ray.settings import local_environment, set_environment
from engine.errors import ConfigError

DAY_S = 86_400


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A short folder for temporary files."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def made(folder: Path, name: str, age_s: float = 0.0) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    now = path.stat().st_mtime
    os.utime(path, (now - age_s, now - age_s))
    return path


def test_it_is_private_whatever_it_was(temporary: Path) -> None:
    made(temporary, f"tandem-{os.getuid()}").chmod(0o777)
    folder = RayFolder.open()
    assert folder.path.parent == temporary
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert folder.gcs.is_dir()
    folder.close()
    assert not folder.gcs.exists()


def test_a_link_in_its_place_is_refused(temporary: Path) -> None:
    (temporary / f"tandem-{os.getuid()}").symlink_to(made(temporary, "elsewhere"))
    with pytest.raises(ConfigError, match="another user"):
        RayFolder.open()


def test_a_long_temporary_folder_is_left_for_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = made(tmp_path, "x" * 100)
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = RayFolder.open()
    socket = folder.path / "ray" / "session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
    assert len(os.fsencode(socket)) <= 107
    folder.close()


def test_only_a_session_of_its_own_is_removed(temporary: Path) -> None:
    folder = RayFolder.open()
    own, other = made(folder.path, "ray/session_1"), made(temporary, "session_1")
    for session in (own, other, None):
        folder.remove(session)
    assert not own.exists()
    assert other.exists()


def test_a_day_later_what_killed_runs_left_is_removed(temporary: Path) -> None:
    dead, alive = 2**22 + 1, os.getpid()
    kept = [
        made(temporary, f"ray/session_new_{dead}"),
        made(temporary, f"ray/session_old_{alive}", 2 * DAY_S),
        made(temporary, "other", 2 * DAY_S),
    ]
    gone = [made(temporary, f"ray/session_old_{dead}", 2 * DAY_S)]
    sweep(temporary, kept[0].stat().st_mtime)
    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in gone)


def test_rays_processes_wait_for_a_gcs_as_long_as_a_drain() -> None:
    variables = local_environment(Path("/f"), Path("/f/gcs"), drain_s=600.0)
    assert float(variables["RAY_gcs_rpc_server_reconnect_timeout_s"]) > 600
    assert variables["RAY_gcs_storage_path"] == "/f/gcs"


def test_rays_metrics_are_closed_on_request() -> None:
    variables = local_environment(Path("/f"), Path("/f/gcs"), 30.0, open_metrics=False)
    assert variables["RAY_enable_metrics_collection"] == "0"
    ports = {"DASHBOARD_METRIC_PORT", "AUTOSCALER_METRIC_PORT"}
    assert {variables[name] for name in ports} == {"-1"}
    assert not ports & local_environment(Path("/f"), Path("/f/gcs"), 30.0).keys()


def test_an_inherited_environment_cannot_open_rays_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_DEDUP_LOGS", "1")
    set_environment({"RAY_AUTH_MODE": "token", "RAY_DEDUP_LOGS": "0"})
    assert (os.environ["RAY_AUTH_MODE"], os.environ["RAY_DEDUP_LOGS"]) == ("token", "1")


def test_the_link_to_a_session_goes_with_the_session(temporary: Path) -> None:
    folder = RayFolder.open()
    sessions = folder.path / "ray"
    latest, session = sessions / "session_latest", sessions / "session_1"
    session.mkdir(parents=True)
    latest.symlink_to(session)
    RayFolder.open().close()
    assert latest.is_symlink()
    folder.remove(session)
    assert not latest.is_symlink()
    latest.symlink_to(sessions / "of_a_killed_run")
    RayFolder.open().close()
    assert not latest.is_symlink()
    folder.close()
