"""`tandem serve` as a user runs it: a process of its own, a real Ray cluster, real ports."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.core.process_sockets import (
    CONNECTED,
    LISTENS,
    holders,
    listeners,
    sockets_in,
    sockets_of,
)
from tests.eventually import wait_until
from tests.served_rows import faults_told

START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 120
_ASKS = 3


@dataclass
class Serving:
    """A running `tandem serve`, and where it says it listens."""

    process: subprocess.Popen[str]
    log: Path
    grpc: str
    http: str
    dashboard: str

    def tandem(self, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run another `tandem` command against it."""
        command = [sys.executable, "-m", "cluster.cli.main", *arguments, "--address", self.grpc]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def check_rows(self) -> None:
        """Fail if the stages of a request that it served do not add up to TTFT and TTLT."""
        told = self._asked("requests", "--limit", "1000")
        assert told.returncode == 0, told.stderr
        faults = faults_told(told.stdout)
        assert not faults, faults

    def replicas(self) -> list[dict[str, object]]:
        """What `tandem status --json` says."""
        return json.loads(self._asked("status").stdout)["replicas"]

    def _asked(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What a command says in JSON; asked again where a busy router was late."""
        for _ in range(_ASKS):
            done = self.tandem(*arguments, "--json")
            if done.stdout or not done.returncode:
                break
        return done

    def pid_of(self, address: str) -> int:
        """The process that listens on that address, by way of /proc."""
        for pid in self.pids_of(address):
            return pid
        raise LookupError(f"nobody listens on {address}")

    def pids_of(self, address: str) -> set[int]:
        """The processes that listen on that address."""
        return listeners(int(address.rsplit(":", 1)[1]))

    def serving_me(self, address: str) -> set[int]:
        """The processes at the other end of this process's connections to that address."""
        port = int(address.rsplit(":", 1)[1])
        found, mine = sockets_in(CONNECTED), sockets_of(Path("/proc/self"))
        ends = {one.here for one in found if one.inode in mine and one.there[1] == port}
        return holders({one.inode for one in found if one.there in ends and one.here[1] == port})

    def session(self) -> Path:
        """The session folder of its Ray, as its processes were told."""
        for pid in self.below():
            with suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
                if found := re.search(r"session[_-]dir[= ](\S+)", command):
                    return Path(found.group(1))
        raise AssertionError("no Ray process names its session folder")

    def hosts(self) -> set[str]:
        """The addresses on which any of its processes listens."""
        return {address.rpartition(":")[0] for address in self.ports()}

    def ports(self) -> set[str]:
        """Each host:port on which any of its processes listens."""
        held = self._held()
        listening = (one for one in sockets_in(LISTENS) if one.inode in held)
        return {f"{host}:{port}" for host, port in (one.here for one in listening)}

    def unix_sockets(self) -> set[str]:
        """The paths of its Unix sockets. Abstract ones begin with @."""
        lines = Path("/proc/net/unix").read_text().splitlines()[1:]
        held, rows = self._held(), [line.split(maxsplit=7) for line in lines]
        return {row[7] for row in rows if len(row) == 8 and row[6] in held}

    def _held(self) -> set[str]:
        """The inodes of the sockets of its processes."""
        pids = {self.process.pid, *self.below()}
        return set().union(*(sockets_of(Path(f"/proc/{pid}")) for pid in pids))

    def below(self) -> set[int]:
        """The processes that it started, and theirs."""
        return descendants(self.process.pid)


def begin(*arguments: str, log: Path, level: str | None = None) -> subprocess.Popen[str]:
    """Start it on free ports. `level` is that of its logs."""
    ports = ("--port", "0", "--grpc-port", "0", "--dashboard-port", "0")
    command = [sys.executable, "-m", "cluster.cli.main", "serve", *ports, *arguments]
    with log.open("w") as out:
        return subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
            env=os.environ | ({} if level is None else {"TANDEM_LOG": level}),
        )


@contextmanager
def serve(*arguments: str, folder: Path, level: str | None = None) -> Iterator[Serving]:
    """Start it, wait until it is ready, stop it as Ctrl-C does.

    Before it stops, the stages of all requests that it remembers are checked.
    """
    log = folder / "serve.log"
    process = begin(*arguments, log=log, level=level)
    try:
        _wait_ready(process, log)
        text = log.read_text()
        serving = Serving(
            process,
            log,
            grpc=_found(r"gRPC +(\S+)", text),
            http=_found(r"HTTP +(\S+)", text),
            dashboard=_found(r"Ray dashboard +(\S+)", text),
        )
        yield serving
        if process.poll() is None:
            serving.check_rows()
    finally:
        stop(process)


def stop(process: subprocess.Popen[str], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Ctrl-C; a process that does not end by itself fails the test."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    process.wait(timeout_s)


def descendants(pid: int) -> set[int]:
    """The processes below one, by way of /proc."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rsplit(")", 1)[1].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def _wait_ready(process: subprocess.Popen[str], log: Path) -> None:
    def is_ready() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"tandem serve ended:\n{log.read_text()}")
        return "\nready" in log.read_text()

    try:
        wait_until(is_ready, START_TIMEOUT_S)
    except TimeoutError:
        raise AssertionError(f"tandem serve did not come up:\n{log.read_text()}") from None


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match, text
    return match.group(1)
