"""The parts of `tandem serve` that start no Ray: ports, progress, processes, shares, logs."""

from __future__ import annotations

import io
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.cli.main import DEFAULT_ADDRESS
from cluster.config.deployment import RayConfig
from cluster.config.router import RouterConfig
from cluster.config.schema import TandemConfig
from cluster.deploy import embedded_redis
from cluster.deploy.child_processes import descendants
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.deploy.reserved_ports import Ports, router_command
from cluster.deploy.signals import signals_delayed
from cluster.deploy.startup_progress import DeploymentState, StartupProgress, failure_reason
from cluster.deploy.stop_request import stop_requested
from cluster.discovery.redis_directory import Directory
from cluster.discovery.request_seal import RequestSeal
from cluster.sockets import listening_socket, reachable
from cluster.telemetry.logging_setup import LineFormatter, configure_logging, level_from_environment
from engine.errors import ConfigError
from tests.cluster.discovery.members import SECRET
from tests.eventually import eventually, wait_until

TRACEBACK = """The deployment failed to start 2 times in a row. Error:
ray::ServeReplica:tandem:decode.initialize_and_get_metadata() (pid=1)
RuntimeError: Traceback (most recent call last):
  File "cluster/deploy/serve_app.py", line 42, in __init__
engine.errors.{name}: the attention of Foo is not supported
"""


def state(message: str = "", status: str = "UPDATING", running: int = 0) -> DeploymentState:
    return DeploymentState("decode", wanted=2, running=running, status=status, message=message)


@pytest.fixture
def ports() -> Iterator[Ports]:
    ports = Ports()
    yield ports
    ports.release()


def on_free_ports(host: str = "127.0.0.1") -> TandemConfig:
    return replace(
        TandemConfig(),
        router=RouterConfig(host=host, http_port=0, grpc_port=0),
        ray=RayConfig(dashboard_port=0),
    )


def numbers(config: TandemConfig) -> list[int]:
    return [config.router.http_port, config.router.grpc_port, config.ray.dashboard_port]


def test_a_free_port_is_none_that_ray_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    # A kernel may keep to the lower half.
    taken = range(first + (last - first) * 2 // 5)
    monkeypatch.setattr("cluster.deploy.reserved_ports._RAYS_OWN", taken)
    asked = TandemConfig(
        router=RouterConfig(http_port=0, grpc_port=0), ray=RayConfig(dashboard_port=0)
    )
    ports = Ports()
    found = ports.settle(asked)
    ports.release()
    given = (found.router.http_port, found.router.grpc_port, found.ray.dashboard_port)
    assert not set(given) & set(taken)


def test_a_command_names_an_address_other_than_the_default() -> None:
    assert router_command("stop", DEFAULT_ADDRESS) == "tandem stop"
    assert router_command("stop", "127.0.0.1:7000") == "tandem stop --address 127.0.0.1:7000"


def test_free_ports_are_found_and_differ(ports: Ports) -> None:
    found = numbers(ports.settle(on_free_ports()))
    assert len(set(found)) == 3
    assert 0 not in found


def test_ports_are_kept_for_their_servers_alone(ports: Ports) -> None:
    for port in numbers(ports.settle(on_free_ports())):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        for _ in range(2):  # a server that comes again finds it still kept
            with listening_socket("127.0.0.1", port), socket.socket() as client:
                client.connect(("127.0.0.1", port))


def test_a_port_in_use_is_refused(ports: Ports) -> None:
    config = ports.settle(on_free_ports())
    with listening_socket("127.0.0.1", config.router.grpc_port):
        ports.release()
        with pytest.raises(ConfigError, match=r"address already in use: .* --grpc-port"):
            ports.settle(config)


def test_an_address_that_is_not_ours_is_refused(ports: Ports) -> None:
    with pytest.raises(ConfigError, match="cannot listen on 203"):
        ports.settle(on_free_ports("203.0.113.9"))


def test_a_server_on_all_interfaces_is_reached_on_loopback() -> None:
    assert reachable("0.0.0.0", 1) == "127.0.0.1:1"
    assert reachable("::", 1) == "[::1]:1"
    assert reachable("10.0.0.1", 1) == "10.0.0.1:1"
    assert reachable("0.0.0.0", 1, "10.0.0.7") == "10.0.0.7:1"
    assert reachable("10.0.0.1", 1, "10.0.0.7") == "10.0.0.1:1"


def test_the_reason_is_found_in_a_traceback() -> None:
    message = TRACEBACK.format(name="UnsupportedModel")
    assert failure_reason(message) == "the attention of Foo is not supported"
    assert failure_reason("line 1\n\n  killed by signal 9 \n") == "killed by signal 9"
    assert failure_reason("") is None


def test_an_error_that_no_retry_can_mend_is_a_failure_at_once() -> None:
    expected = "decode: the attention of Foo is not supported"
    assert state(TRACEBACK.format(name="UnsupportedModel")).failure == expected
    assert state(TRACEBACK.format(name="Unavailable")).failure is None
    assert state(TRACEBACK.format(name="Unavailable"), "DEPLOY_FAILED").failure == expected


def test_progress_says_each_change_once() -> None:
    out = io.StringIO()
    progress = StartupProgress(out)
    for running in (0, 1, 1, 2):
        progress.replicas({"decode": state(running=running)})
    lines = [line.split(" s  ")[1] for line in out.getvalue().splitlines()]
    assert lines == ["decode 1/2", "decode 2/2"]
    assert state(running=2).complete


def test_descendants_are_seen_at_any_depth() -> None:
    nested = "import subprocess; subprocess.run(['sleep', '30'])"
    child = subprocess.Popen([sys.executable, "-c", nested])
    try:
        wait_until(lambda: descendants(child.pid))
        (sleeper,) = descendants(child.pid)
        assert {child.pid, sleeper} <= set(descendants(os.getpid()))
    finally:
        for pid in descendants(child.pid):
            os.kill(pid, 9)
        child.wait(30)


def test_nothing_is_left_of_a_process_that_ends_its_descendants() -> None:
    code = """
import os, subprocess, sys
from cluster.deploy.child_processes import adopt_orphans, descendants, end_descendants
adopt_orphans()
sleeper = "subprocess.Popen(['sleep', '60'], stdout=-3, stderr=-3)"
orphan = f"import subprocess; print({sleeper}.pid, flush=True)"
pid = int(subprocess.run([sys.executable, "-c", orphan], capture_output=True).stdout)
assert descendants(os.getpid()) == [pid]
assert end_descendants(0.1) == 1
assert descendants(os.getpid()) == []
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


# --- logs ---


def test_a_log_is_one_line_with_its_fields() -> None:
    out = io.StringIO()
    configure_logging("info", out)
    log = logging.getLogger("cluster.example")
    log.debug("unseen")
    log.info("request\nfinished", extra={"request_id": "r-1", "reason": "a b", "seconds": 0.25})
    (line,) = out.getvalue().splitlines()
    assert line.endswith(
        'Z info cluster.example request\\nfinished request_id=r-1 reason="a b" seconds=0.25'
    )


def test_a_line_names_the_replica_that_it_comes_from() -> None:
    out = io.StringIO()
    configure_logging("info", out, replica="decode#1")
    log = logging.getLogger("decode_pool.example")
    log.info("one", extra={"tokens": 3})
    log.info("another", extra={"replica": "prefill#2"})
    one, another = out.getvalue().splitlines()
    assert one.endswith(" one tokens=3 replica=decode#1")
    assert another.endswith(" another replica=prefill#2")


def test_an_exception_is_one_line_with_file_and_line() -> None:
    out = io.StringIO()
    configure_logging("warning", out)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("engine.example").exception("it failed")
    (line,) = out.getvalue().splitlines()
    assert 'error="ValueError: two\\nlines"' in line
    assert "test_launcher_parts.py:" in line
    configure_logging("debug", out)
    record = logging.LogRecord("n", logging.ERROR, "f", 1, "m", (), None)
    assert LineFormatter().format(record).endswith("Z error n m")


def test_a_stderr_that_was_closed_is_not_written_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    configure_logging("info")
    logging.getLogger("cluster.example").info("one")
    assert first.getvalue().endswith(" one\n")
    first.close()
    monkeypatch.setattr(sys, "stderr", second)
    logging.getLogger("cluster.example").info("two")
    (line,) = second.getvalue().splitlines()
    assert line.endswith(" two")


def test_the_level_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_LOG", " Info ")
    assert level_from_environment() == "info"
    monkeypatch.delenv("TANDEM_LOG")
    assert level_from_environment() == "warning"


async def test_a_redis_that_cannot_be_started_anew_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    redis, seal = EmbeddedRedis.start(), RequestSeal(SECRET, "run")
    directory = Directory.connect(replace(TandemConfig().directory, url=redis.url), SECRET)
    try:
        os.kill(redis.pid, signal.SIGKILL)
        await eventually(lambda: not redis.alive())
        with monkeypatch.context() as broken:
            broken.setattr(embedded_redis, "find_server", lambda: tmp_path / "missing")
            for _ in range(2):
                assert not await stop_requested(directory, redis, seal)
                assert not redis.alive()
        assert not await stop_requested(directory, redis, seal)
        assert redis.alive()
    finally:
        await directory.close()
        redis.stop()


def test_a_pending_abort_does_not_cut_the_end_short() -> None:
    """What Ray's handler of SIGTERM leaves: an alarm, and a handler that exits."""
    code = """
import io, signal, sys
from cluster.config.schema import load_config
from cluster.deploy.launcher import Launcher

launcher = Launcher(load_config(), io.StringIO())
signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))
signal.alarm(60)
launcher.stop()
print(signal.alarm(0), signal.getsignal(signal.SIGTERM) == signal.SIG_IGN)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (found.stdout, found.returncode) == ("0 True\n", 0), found.stderr


@pytest.mark.usefixtures("signals_heard")
def test_signals_that_come_while_it_imports_ray_are_acted_on() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(KeyboardInterrupt), signals_delayed():
        signal.raise_signal(signal.SIGINT)
        pending = signal.sigpending()
    assert pending == {signal.SIGINT}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_ray_s_token_is_its_user_s_alone(tmp_path: Path) -> None:
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("secret")
    token.chmod(0o644)
    code = """
from cluster.deploy.ray_cluster import _keep_token_private

_keep_token_private()
"""
    subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"HOME": str(tmp_path)},
        timeout=60,
        check=True,
    )
    assert token.stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("signals_heard")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_within_an_exec_leaves_no_trace(number):
    """As dataclasses have one at import: Python would end by SIGINT, though it was caught."""
    code = (
        "import signal; from cluster.deploy.signals import listen_to_signals\n"
        "listen_to_signals()\n"
        f"try: exec('signal.raise_signal({int(number)})\\nfor _ in range(10**7): pass')\n"
        "except KeyboardInterrupt: pass\n"
        "else: raise SystemExit('not told')\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
