"""Starts a server, waits until it answers, and ends it with all its children."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.deploy.child_processes import descendants

_POLL_S = 0.5
_END_S = 40.0
_LEFTOVER_S = 10.0
# Below the ports of outgoing connections, and above those that Ray's workers may have.
_OWN_PORTS = range(20_000, 32_000)
_TRIES = 100


class NotReady(Exception):
    """The server ended or did not answer in time; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A command, and the path that answers 200 when it is up.

    `ready_line` must be in its output, too, where a server announces itself.
    """

    command: tuple[str, ...]
    port: int
    health: str = "/health"
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_line: str | None = None
    start_s: float = 300.0


@contextlib.contextmanager
def running(server: ServerProcess, log: Path) -> Iterator[int]:
    """Run the server while the block runs; yields its process id. Raises NotReady or OSError."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            server.command,
            env={**os.environ, **server.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,  # in our session: Linux shares cores out between sessions first
        )
        try:
            _wait(server, process, log)
            yield process.pid
        finally:
            end(process)


def freeze(pid: int) -> None:
    """Stop a server and its children. Parents stop first, so that they start no others."""
    _signal_all(pid, signal.SIGSTOP)


def thaw(pid: int) -> None:
    """Continue a frozen server and its children."""
    _signal_all(pid, signal.SIGCONT)


def _signal_all(pid: int, number: signal.Signals) -> None:
    for one in (pid, *descendants(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, number)


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate the process, and then kill the rest of its process group."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        deadline = time.monotonic() + _LEFTOVER_S
        while _group_lives(process):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S / 10)


def free_port() -> int:
    """A port on which no process listens now; raises OSError where none is found.

    It is none of those that the system gives to a process that asks for any port.
    """
    for port in random.SystemRandom().sample(_OWN_PORTS, _TRIES):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"{_TRIES} ports are taken")


def _wait(server: ServerProcess, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + server.start_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise NotReady(f"it ended with {process.returncode}: {_tail(log)}")
        if _answers(server) and (server.ready_line or "") in log.read_text(errors="replace"):
            return
        time.sleep(_POLL_S)
    raise NotReady(f"no answer in {server.start_s:.0f} s: {_tail(log)}")


def _answers(server: ServerProcess) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request("GET", server.health)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-600:]


def _group_lives(process: subprocess.Popen[bytes]) -> bool:
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True
