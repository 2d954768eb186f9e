"""A GCS that died is started anew: with its own command, on its old port, and not for ever."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.deploy.child_processes import descendants, ended
from cluster.deploy.local_ray.gcs_server import MOST_DEATHS, WITHIN_S, GcsServer, with_port
from engine.errors import Unavailable
from tests.eventually import wait_until


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of that name, as Ray starts it."""
    sleep = shutil.which("sleep")
    assert sleep is not None
    (tmp_path / "gcs_server").symlink_to(sleep)
    process = subprocess.Popen([str(tmp_path / "gcs_server"), "600"])
    yield process
    process.kill()
    process.wait()


def kill(server: GcsServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not server.alive)


def command(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]


def test_the_port_is_the_one_that_the_others_know() -> None:
    flags = ["gcs_server", "--gcs_server_port=0", "--log_dir=/x"]
    assert with_port(flags, "7001") == ["gcs_server", "--gcs_server_port=7001", "--log_dir=/x"]


def test_without_a_gcs_ray_did_not_start() -> None:
    with pytest.raises(Unavailable, match="no gcs_server"):
        GcsServer.find("127.0.0.1:1")


def test_it_is_started_anew_with_its_own_command(stand_in: subprocess.Popen[bytes]) -> None:
    server = GcsServer.find("127.0.0.1:7001")
    assert server.pid == stand_in.pid
    server.keep()
    assert server.pid == stand_in.pid
    before = command(server.pid)
    kill(server)
    server.keep()
    try:
        assert server.pid != stand_in.pid
        assert server.pid in descendants(os.getpid())
        wait_until(lambda: command(server.pid) == before)
        assert stand_in.wait(30) == -signal.SIGKILL  # its exit code is left to Ray
    finally:
        server.stop()
    assert ended(server.pid)


def test_one_that_dies_again_and_again_is_given_up() -> None:
    clock = Clock()
    first = subprocess.Popen(["true"])
    server = GcsServer(first.pid, ["true"], clock)
    for _ in range(MOST_DEATHS):
        wait_until(lambda: not server.alive)
        server.keep()
        clock.now += 1
    wait_until(lambda: not server.alive)
    with pytest.raises(Unavailable, match="died 6 times"):
        server.keep()
    clock.now = WITHIN_S
    server.keep()
    server.stop()
    first.wait()
