"""Kills the router of a small cluster with SIGKILL, and prints when the next one serves.

    python -m bench.router.death [--rounds 3]

It starts `tandem serve` with the demo model, which has nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.core.host_info import as_line, describe_machine, now
from bench.core.markdown_tables import table
from bench.systems.cli_paths import add_paths, demo_paths
from bench.systems.server_process import running
from bench.systems.services import Service, tandem
from cluster.deploy.child_processes import descendants
from cluster.work_progress import tracked
from engine.errors import TandemError
from tandem_client import Client

_ROUTER = "ray::ServeReplica:tandem:router"
_POLL_S, _ANSWER_S, _LIMIT_S, _CALM_S = 0.02, 5.0, 120.0, 5.0
STAGES = (
    "a process starts",
    "its Python and Ray are up",
    "Serve begins to make the router",
    "the front ends answer",
    "a request is served over HTTP and gRPC",
)


@dataclass(frozen=True, slots=True)
class Death:
    """Seconds from the kill to the end of each stage, and of the CPU that the new router used."""

    ended_s: tuple[float, ...]
    cpu_s: float
    memory_mib: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    add_paths(parser)
    options = parser.parse_args()
    paths = demo_paths(options)
    service = tandem(paths)
    with running(service.process, paths.logs / "router-death.log") as server:
        found = [_death(server, service) for _ in tracked("deaths", range(options.rounds))]
    print(f"{now()}; {as_line(describe_machine())}\n\n{report(found)}")


def report(found: list[Death]) -> str:
    """A table of the rounds, and their medians."""
    columns = [*zip(*(one.ended_s for one in found), strict=True)]
    rows = [
        (name, *(f"{value:.2f}" for value in column), f"{statistics.median(column):.2f}")
        for name, column in zip(STAGES, columns, strict=True)
    ]
    for name, column in (
        ("CPU of the new router, s", [one.cpu_s for one in found]),
        ("memory of the new router, MiB", [one.memory_mib for one in found]),
    ):
        rows.append(
            (name, *(f"{value:.1f}" for value in column), f"{statistics.median(column):.1f}")
        )
    numbers = (f"round {number}" for number in range(1, len(found) + 1))
    return table(("seconds after the kill", *numbers, "median"), rows)


def _death(server: int, service: Service) -> Death:
    """Kill the router, and follow the next one."""
    time.sleep(_CALM_S)
    before = set(descendants(server))
    [router] = [pid for pid in before if _title(pid).startswith(_ROUTER)]
    began_s = time.monotonic()
    os.kill(router, signal.SIGKILL)

    def until(condition: Callable[[], bool]) -> float:
        while not condition():
            if time.monotonic() - began_s > _LIMIT_S:
                raise TimeoutError("no router is back")
            time.sleep(_POLL_S)
        return time.monotonic() - began_s

    def titled(*titles: str) -> list[int]:
        more = set(descendants(server)) - before
        return [pid for pid in more if _title(pid).startswith(titles or "")]

    stages = (
        lambda: bool(titled()),
        lambda: bool(titled("ray::")),
        lambda: bool(titled(f"{_ROUTER}.initialize")),
        lambda: _answers("GET", "/healthz", service.process.port),
        lambda: _serves(service),
    )
    ended_s = tuple(until(stage) for stage in stages)
    [new] = titled(_ROUTER)
    return Death(ended_s, _cpu_s(new), _memory_mib(new))


def _serves(service: Service) -> bool:
    body = f'{{"model": "{service.target.model}", "prompt": "Hello", "max_tokens": 2}}'
    if not _answers("POST", "/v1/completions", service.process.port, body):
        return False
    try:
        asyncio.run(_complete(f"127.0.0.1:{service.grpc_port}"))
    except TandemError:
        return False
    return True


async def _complete(address: str) -> None:
    async with Client(address) as client:
        await client.complete("Hello", max_tokens=2, timeout_s=_ANSWER_S)


def _answers(method: str, path: str, port: int, body: str | None = None) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
