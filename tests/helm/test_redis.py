"""The chart's Redis, started as its pod starts it: the password, and what nobody may call."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from bench.systems.server_process import free_port
from cluster.deploy.embedded_redis import find_server
from tests.eventually import wait_until
from tests.helm.chart import objects, one

PASSWORD = 'with a space, a " and a $HOME'
START_S = 60.0


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """A Redis on loopback with the chart's own files; without TLS, which a small build lacks."""
    values = {"tls": {"enabled": False}, "redis": {"embedded": {"disabledCommands": ["FLUSHALL"]}}}
    data = one(objects(values), "ConfigMap", "tandem-redis")["data"]
    number = free_port()
    settings = data["redis.conf"].replace("/data", str(tmp_path))
    (tmp_path / "redis.conf").write_text(f"{settings}port {number}\nbind 127.0.0.1\n")
    script = data["start.sh"].replace("/etc/redis/redis.conf", f"{tmp_path}/redis.conf")
    (tmp_path / "start.sh").write_text(script.replace("redis-server", str(find_server())))
    command = ["sh", str(tmp_path / "start.sh")]
    env = {"REDIS_PASSWORD": PASSWORD, "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: process.poll() is not None or is_open(number), START_S)
            arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            assert PASSWORD.encode() not in arguments
            yield number
        finally:
            process.kill()


def is_open(number: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", number)) == 0


def test_it_serves_holders_of_the_password_and_nobody_administers_it(port: int) -> None:
    with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    with redis.Redis(port=port, password=PASSWORD) as member:
        assert member.set("a", 1) and member.get("a") == b"1"
        assert member.info("server")  # which Ray asks for when it starts
        for command in ("CONFIG GET *", "DEBUG SLEEP 0", "SHUTDOWN NOSAVE", "ACL LIST"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                member.execute_command(*command.split())
        with pytest.raises(redis.ResponseError, match="unknown command"):
            member.execute_command("FLUSHALL")


def test_a_renewed_certificate_restarts_it(tmp_path: Path) -> None:
    """Redis reads its certificate once, and cert-manager renews it before it ends."""
    data = one(objects(), "ConfigMap", "tandem-redis")["data"]
    (tmp_path / "redis-server").write_text("#!/bin/sh\n")
    (tmp_path / "redis-server").chmod(0o700)
    (tmp_path / "tls.crt").write_text("first")

    def run(script: str) -> int:
        own = data[script].replace("/etc/redis-tls", str(tmp_path)).replace("/data", str(tmp_path))
        env = {"REDIS_PASSWORD": PASSWORD, "PATH": f"{tmp_path}:/usr/bin:/bin"}
        return subprocess.run(["sh", "-c", own], env=env, timeout=START_S, check=False).returncode

    assert run("start.sh") == 0 and run("alive.sh") == 0
    (tmp_path / "tls.crt").write_text("second")
    assert run("alive.sh") != 0
    assert run("start.sh") == 0 and run("alive.sh") == 0
