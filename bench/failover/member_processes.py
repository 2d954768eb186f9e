"""The processes of a cluster without Ray: started, killed and frozen."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.failover.member import SECRET
from bench.router.site import process_of
from cluster.deploy.embedded_redis import EmbeddedRedis
from protos.wire.secret import made

_PREFILL = 2


class MemberProcesses:
    """A router and replicas, a process each; `router` is the address of the router."""

    def __init__(self, url: str, folder: Path, model: str, stack: ExitStack) -> None:
        self.router = ""
        self._ordered = [url, str(folder), model]
        self._folder = folder
        self._stack = stack
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._started = 0

    @property
    def decode(self) -> list[str]:
        """The names of the decode replicas that run."""
        return [name for name in self._processes if name.startswith("decode")]

    def start(self, role: str) -> str:
        """Start a member and wait until it is ready; returns its name, which is new."""
        self._started += 1
        name = f"{role}-{self._started}"
        command = process_of("bench.failover.member", role, name, *self._ordered)
        self._processes[name], read = self._stack.enter_context(command)
        address = read()["address"]
        if role == "router":
            self.router = address
        return name

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a member."""
        self._processes[name].send_signal(number)

    def replace(self, name: str) -> str:
        """Kill a member and start another of its role; returns the name of the new member."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        return self.start(name.partition("-")[0])

    def log(self, name: str) -> list[str]:
        """The lines that a member has logged."""
        return (self._folder / f"{name}.log").read_text().splitlines()

    def logs(self) -> dict[str, list[str]]:
        """The lines of all members that run, by name."""
        return {name: self.log(name) for name in self._processes}


@contextmanager
def members(model: str, decode: int) -> Iterator[MemberProcesses]:
    """A directory, two prefill replicas, that many decode replicas, and a router."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made(folder / SECRET)
        redis = EmbeddedRedis.start()
        stack.callback(redis.stop)
        found = MemberProcesses(redis.url, folder, model, stack)
        for role in (*["prefill"] * _PREFILL, *["decode"] * decode, "router"):
            found.start(role)
        yield found
