"""How fast a cancel frees the pools, and what cancelled prompts cost those behind them.

    python -m bench.cancel [--model demo] [--rounds 20] [--long 10] [--streams 4]

Each round asks for long prompts, goes away from all of them once they are being computed, and asks
for a short one at once. Router, a prefill and a decode replica share this process: no Ray.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from bench.machine import as_line, describe_machine, now
from bench.tables import table
from cluster.api import Tokens
from cluster.client import Client
from cluster.config import EndpointConfig, TandemConfig, located
from cluster.directory import Directory
from cluster.embedded_redis import EmbeddedRedis
from cluster.membership import Pool
from cluster.metrics import TIME_TO_CANCEL
from cluster.replica import Replica
from cluster.router_server import RouterServer
from engine import telemetry
from engine.telemetry import Metric, Sink

_LONG_TOKENS = 1500
_ALL_THERE_S = 60.0
_HOST = "127.0.0.1"


class CancelTimes:
    """A metrics backend that keeps every `time_to_cancel`, in seconds."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def attach(self, metric: Metric) -> Sink:
        """See engine.telemetry.Backend."""
        if metric is TIME_TO_CANCEL:
            return lambda value, labels: self.seen.append(value)
        return lambda value, labels: None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--long", type=int, default=10, help="long prompts in each round")
    parser.add_argument("--streams", type=int, default=4, help="streams that run beside")
    options = parser.parse_args()
    redis = EmbeddedRedis.start()
    times = CancelTimes()
    telemetry.install(times)
    try:
        alone, behind = asyncio.run(_measure(options, redis.url))
    finally:
        redis.stop()
    print(f"{now()}; {as_line(describe_machine())}\n")
    header = ("ms", "median", "p99", "most", "of")
    rows = [
        _row("first token of a short prompt, alone", alone),
        _row(f"the same behind {options.long} cancelled ones", behind),
        _row("time to cancel", times.seen),
    ]
    print(table(header, rows))
    print(f"\nratio of the medians: {statistics.median(behind) / statistics.median(alone):.2f}")


async def _measure(options: argparse.Namespace, url: str) -> tuple[list[float], list[float]]:
    async with _cluster(options.model, url) as (prefill, client):
        others = [
            asyncio.create_task(_stream_for_ever(client, number))
            for number in range(options.streams)
        ]
        await _first_token_s(client, -1)
        alone, behind = [], []
        for number in range(options.rounds):
            alone.append(await _first_token_s(client, 2 * number))
            await _abandon(client, prefill, options.long, number)
            behind.append(await _first_token_s(client, 2 * number + 1))
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0.5)
    return alone, behind


@asynccontextmanager
async def _cluster(model: str, url: str) -> AsyncIterator[tuple[Replica, Client]]:
    base = TandemConfig()
    config = replace(
        base,
        model=replace(base.model, path=located(model)),
        kv=replace(base.kv, blocks=4096),
        router=replace(base.router, http_port=0, grpc_port=0),
        directory=replace(base.directory, url=url),
        # All long prompts are to be on the replica, and none held in the router or refused.
        endpoints={"chat": EndpointConfig(ttft_budget_ms=600_000, token_gap_budget_ms=600_000)},
    )
    directory = Directory.connect(config.directory)
    roles: tuple[Pool, Pool] = ("prefill", "decode")
    replicas = [await Replica.start(config, role, role, _HOST, directory) for role in roles]
    router = await RouterServer.start(config, "router-0", directory)
    try:
        async with Client(router.grpc_address) as client:
            yield replicas[0], client
    finally:
        await router.stop()
        for one in replicas:
            await one.stop()
        await directory.close()


async def _stream_for_ever(client: Client, number: int) -> None:
    while True:
        async for _ in client.generate([5, number], max_tokens=1000, ignore_eos=True):
            pass


async def _first_token_s(client: Client, salt: int) -> float:
    """Of a prompt of 32 tokens that nobody asked for before; the rest is not waited for."""
    prompt = [salt % 200 + 10, salt // 200 % 200 + 10] * 16
    began = time.perf_counter()
    async for event in client.generate(prompt, max_tokens=2, ignore_eos=True):
        if isinstance(event, Tokens):
            return time.perf_counter() - began
    raise RuntimeError("no token")


async def _abandon(client: Client, prefill: Replica, count: int, salt: int) -> None:
    """Ask for long prompts, wait until the replica has them all, and go away."""
    tasks = [asyncio.create_task(_ask_long(client, salt, number)) for number in range(count)]
    async with asyncio.timeout(_ALL_THERE_S):
        while prefill.load().waiting + prefill.load().running < count:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _ask_long(client: Client, salt: int, number: int) -> None:
    prompt = [10 + number, 10 + salt % 200] * (_LONG_TOKENS // 2)
    with suppress(asyncio.CancelledError):
        async for _ in client.generate(prompt, max_tokens=50, ignore_eos=True):
            pass


def _row(name: str, seconds: list[float]) -> tuple[str, ...]:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    figures = (cuts[49], cuts[98], max(seconds))
    return (name, *(f"{1000 * one:.1f}" for one in figures), str(len(seconds)))


if __name__ == "__main__":
    main()
