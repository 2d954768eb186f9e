"""The embedded Redis: private, and gone with its parent however that ends."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cluster import locked_folder
from cluster.deploy import embedded_redis
from cluster.deploy.embedded_redis import EmbeddedRedis
from engine.errors import ConfigError, Unavailable
from tests.eventually import wait_until

PARENT = """
import time
from cluster.deploy.embedded_redis import EmbeddedRedis
server = EmbeddedRedis.start()
print(server.pid, server.url, flush=True)
time.sleep(600)
"""


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def ends_within(pid: int, seconds: float) -> bool:
    try:
        wait_until(lambda: not running(pid), seconds)
    except TimeoutError:
        return False
    return True


def test_it_answers_in_a_private_folder_and_leaves_nothing() -> None:
    server = EmbeddedRedis.start()
    folder = Path(server.url.removeprefix("unix://")).parent
    assert server.alive()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [entry.name for entry in folder.iterdir()] == ["redis.sock"]
    server.stop()
    server.stop()
    assert not server.alive()
    assert not folder.exists()


def test_the_next_removes_the_folder_of_a_killed_parent_and_keeps_one_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(locked_folder, "_SWEEP_AGE_S", -1.0)
    # Elsewhere it would remove folders that tests in other processes are about to lock.
    folder = tempfile.mkdtemp(dir="/tmp")  # short enough for sockets
    monkeypatch.setattr(tempfile, "tempdir", folder)
    command, environment = [sys.executable, "-c", PARENT], os.environ | {"TMPDIR": folder}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pid, url = parent.stdout.readline().split()
        left = Path(url.removeprefix("unix://")).parent
        first = EmbeddedRedis.start()
        assert left.exists()
        parent.kill()
    assert ends_within(int(pid), 30)
    second = EmbeddedRedis.start()
    assert not left.exists()
    assert Path(first.url.removeprefix("unix://")).exists()
    for server in (first, second):
        server.stop()
    Path(folder).rmdir()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_parent(how: signal.Signals) -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline().split()[0])
        assert running(pid)
        parent.send_signal(how)
    assert ends_within(pid, 30)


def test_a_frozen_server_can_be_stopped() -> None:
    server = EmbeddedRedis.start()
    os.kill(server.pid, signal.SIGSTOP)
    server.stop()
    assert not server.alive()


def test_the_system_s_server_serves_where_the_wheel_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no redis-server found"):
        EmbeddedRedis.start()
    binary = tmp_path / "redis-server"
    binary.write_text("#!/bin/sh\nexit 7\n")
    binary.chmod(0o755)
    assert embedded_redis.find_server() == binary
    with pytest.raises(Unavailable, match="ended with 7"):
        EmbeddedRedis.start()


def test_a_server_that_never_answers_meets_the_deadline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    binary = tmp_path / "redis-server"
    binary.write_text("#!/bin/sh\nexec sleep 60\n")
    binary.chmod(0o755)
    monkeypatch.setattr(embedded_redis, "find_server", lambda: binary)
    with pytest.raises(Unavailable, match="in time"):
        EmbeddedRedis.start(timeout_s=0.2)


@pytest.mark.parametrize("content", [None, b"of another machine"])
def test_a_binary_that_cannot_run_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None
) -> None:
    binary = tmp_path / "redis-server"
    if content is not None:
        binary.write_bytes(content)
        binary.chmod(0o755)
    monkeypatch.setattr(embedded_redis, "find_server", lambda: binary)
    with pytest.raises(ConfigError, match=f"{re.escape(str(binary))} is not there or"):
        EmbeddedRedis.start()
