"""The processes of a cluster without Ray: started, killed, frozen and cut off."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from bench.failover.member import SECRET
from bench.router.site import process_of
from cluster.deploy.embedded_redis import EmbeddedRedis
from protos.wire.secret import made

Fault = Literal["kill", "freeze", "cut"]
_PREFILL = 2


class MemberProcesses:
    """A router and replicas, a process each; `router` is the address of the router.

    With `cables` a decode replica has a proxy before it, which is a process, too.
    """

    def __init__(
        self, url: str, folder: Path, model: str, stack: ExitStack, *, cables: bool
    ) -> None:
        self.router = ""
        self._ordered = [url, str(folder), model]
        self._cables = cables
        self._cable_pids: dict[str, int] = {}
        self._folder = folder
        self._stack = stack
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._started = 0

    @property
    def decode(self) -> list[str]:
        """The names of the decode replicas that run."""
        return [name for name in self._processes if name.startswith("decode")]

    def start(self, *roles: str) -> None:
        """Start members beside each other, under new names, and wait until all are ready."""
        started = [self._begin(role) for role in roles]
        for name, read in started:
            said = read()
            if said["cable"]:
                self._cable_pids[name] = int(said["cable"])
            if name.startswith("router"):
                self.router = said["address"]

    def _begin(self, role: str) -> tuple[str, Callable[[], dict[str, str]]]:
        self._started += 1
        name = f"{role}-{self._started}"
        more = ["cable"] if self._cables and role == "decode" else []
        command = process_of("bench.failover.member", role, name, *self._ordered, *more)
        self._processes[name], read = self._stack.enter_context(command)
        return name, read

    def strike(self, name: str, fault: Fault) -> None:
        """Kill or freeze a member, or cut it off: its cable freezes."""
        if fault == "cut":
            os.kill(self._cable_pids[name], signal.SIGSTOP)
        else:
            number = signal.SIGKILL if fault == "kill" else signal.SIGSTOP
            self._processes[name].send_signal(number)

    def replace(self, name: str) -> None:
        """Kill a member and start another of its role."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        self.start(name.partition("-")[0])

    def log(self, name: str) -> list[str]:
        """The lines that a member has logged."""
        return (self._folder / f"{name}.log").read_text().splitlines()

    def logs(self) -> dict[str, list[str]]:
        """The lines of all members that run, by name."""
        return {name: self.log(name) for name in self._processes}


@contextmanager
def members(model: str, decode: int, *, cables: bool = False) -> Iterator[MemberProcesses]:
    """A directory, two prefill replicas, that many decode replicas, and a router."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made(folder / SECRET)
        redis = EmbeddedRedis.start()
        stack.callback(redis.stop)
        found = MemberProcesses(redis.url, folder, model, stack, cables=cables)
        found.start(*["prefill"] * _PREFILL, *["decode"] * decode)
        found.start("router")
        yield found
