"""Measures what a refusal costs the event loop of a router, over each front end.

    python -m bench.router.refusals [--rate 300] [--seconds 5]

The replica behind the router is slow, so that nearly all requests are refused. The processor time
of the router's event loop is that of its main thread.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bench.core.host_info import as_line, describe_machine, now
from bench.core.markdown_tables import table
from bench.core.results import Series, keep, series_of, value_of
from bench.load.overload_client import REFUSED, GrpcClient, HttpClient, OverloadClient
from bench.router.site import Site, site_of
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.work_progress import tracked

_DEADLINE_S = 30.0
_WARM_S = 2.0
_WORDS = 100


@dataclass(frozen=True, slots=True)
class RefusalCost:
    """Answers by outcome, and seconds of the router's event loop for each of them."""

    front_end: str
    outcomes: Counter[str]
    loop_s: float

    @property
    def each_ms(self) -> float:
        """Milliseconds of the event loop for each request."""
        return 1000 * self.loop_s / max(1, self.outcomes.total())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rate", type=float, default=300.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--prefill-ms", type=float, default=400.0, help="what a first token takes")
    parser.add_argument("--front-ends", nargs="+", default=["grpc", "http"])
    parser.add_argument("--results", type=Path, help="the folder in which the figures are kept")
    options = parser.parse_args()
    redis, found = EmbeddedRedis.start(), list[RefusalCost]()
    try:
        with site_of(redis.url, options.prefill_ms) as site:
            asyncio.run(_measure(site, options, found))
    finally:
        redis.stop()
    machine = describe_machine()
    rows = [
        (
            one.front_end,
            f"{one.each_ms:.3f}",
            ", ".join(f"{n} {k}" for k, n in one.outcomes.items()),
        )
        for one in found
    ]
    print(f"{now()}; {as_line(machine)}\n")
    print(table(("front end", "ms of the event loop for each request", "answers"), rows))
    if options.results:
        conditions = {"rate": options.rate, "seconds": options.seconds}
        keep(options.results, "refusals", machine, [as_series(found, machine, conditions)])


def as_series(
    found: list[RefusalCost], machine: dict[str, str], conditions: dict[str, str | int | float]
) -> Series:
    """The series of one run."""
    figures = {
        f"{one.front_end}: event loop for each refusal": value_of(
            one.each_ms, "ms", one.outcomes[REFUSED], "refusals"
        )
        for one in found
    }
    return series_of("refusals", machine, conditions, figures)


async def _measure(site: Site, options: argparse.Namespace, found: list[RefusalCost]) -> None:
    for front_end in tracked("refusals", options.front_ends, str):
        client = _client(site, front_end)
        await _offer(client, options.rate, _WARM_S)
        idle = await _idle_s(site.router, options.seconds)
        before_s = _loop_s(site.router)
        outcomes = await _offer(client, options.rate, options.seconds)
        found.append(RefusalCost(front_end, outcomes, _loop_s(site.router) - before_s - idle))
        await client.close()


def _client(site: Site, front_end: str) -> OverloadClient:
    address = site.front_ends[front_end]
    if front_end == "grpc":
        return GrpcClient(address, _DEADLINE_S, "tight")
    return HttpClient(int(address.rpartition(":")[2]), _DEADLINE_S, "tight")


async def _offer(client: OverloadClient, rate: float, seconds: float) -> Counter[str]:
    """Send requests at even times; returns the answers by outcome."""
    due_s, sent = time.perf_counter(), 0
    end_s, outcomes = due_s + seconds, Counter[str]()

    async def send(number: int) -> None:
        answer = await client.send(f"{number} " + "word " * _WORDS, 1)
        outcomes[answer.outcome] += 1

    async with asyncio.TaskGroup() as tasks:
        while due_s < end_s:
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            tasks.create_task(send(sent))
            due_s, sent = due_s + 1 / rate, sent + 1
    return outcomes


async def _idle_s(process: int, seconds: float) -> float:
    """Seconds of the event loop in that time without requests."""
    before_s = _loop_s(process)
    await asyncio.sleep(min(seconds, _WARM_S))
    return (_loop_s(process) - before_s) * seconds / min(seconds, _WARM_S)


def _loop_s(process: int) -> float:
    """Processor seconds of the main thread, which runs the event loop."""
    run_ns = Path(f"/proc/{process}/task/{process}/schedstat").read_text().split()[0]
    return int(run_ns) / 1e9


if __name__ == "__main__":
    main()
