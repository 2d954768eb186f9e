"""The preStop hook, run as it is: it waits for the replicas' processes, within its bound."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helm.chart import CHART

SCRIPT = CHART / "files" / "drain.sh"


@pytest.fixture
def called(tmp_path: Path) -> Path:
    """A `ray` on the PATH that notes how it was called."""
    ray = tmp_path / "bin" / "ray"
    ray.parent.mkdir()
    ray.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
    ray.chmod(0o755)
    return tmp_path / "called"


@pytest.fixture
def processes(tmp_path: Path) -> Path:
    """A pod's own processes: none yet, whatever else runs on this machine."""
    folder = tmp_path / "proc"
    folder.mkdir()
    return folder


@pytest.fixture
def replica(processes: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the title that Ray gives to a replica; it ends when its input does."""
    command = ["bash", "-c", "exec -a ray::ServeReplica:tandem:decode cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        wait_for_title(process.pid)
        (processes / str(process.pid)).symlink_to(f"/proc/{process.pid}")
        yield process
        process.kill()


def wait_for_title(pid: int) -> None:
    file = Path(f"/proc/{pid}/cmdline")
    while not file.read_bytes().startswith(b"ray::"):
        pass  # bounded by the test's own timeout


def drain(called: Path, processes: Path, seconds: int) -> subprocess.Popen[str]:
    path = f"{called.parent}/bin:{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", str(SCRIPT), str(seconds), str(processes)],
        env={"PATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_the_drain_hook_ends_when_ray_has_no_replica_left(called: Path, processes: Path) -> None:
    with drain(called, processes, 30) as hook:
        assert hook.communicate(timeout=60)[0] == ""
    assert hook.returncode == 0
    command = called.read_text().split()
    assert command[0] == "drain-node"
    assert command[command.index("--deadline-remaining-seconds") + 1] == "30"


def test_it_waits_for_a_replica(
    called: Path, processes: Path, replica: subprocess.Popen[bytes]
) -> None:
    with drain(called, processes, 60) as hook:
        with pytest.raises(subprocess.TimeoutExpired):
            hook.wait(2)
        assert replica.stdin is not None
        replica.stdin.close()
        replica.wait(60)
        assert hook.wait(60) == 0


def test_it_waits_no_longer_than_it_may(
    called: Path, processes: Path, replica: subprocess.Popen[bytes]
) -> None:
    with drain(called, processes, 1) as hook:
        assert "still run" in hook.communicate(timeout=60)[0]
    assert replica.poll() is None
