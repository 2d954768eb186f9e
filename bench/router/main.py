"""Measures one router process: messages, tokens, added time to the first token, CPU.

    python -m bench.router.main [--seconds 3] [--streams 100] [--open 0 500] [--parts speed first]

Client, router and fake replicas are a process each. They share the machine's cores, so the load of
one process slows the others down.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import grpc.aio

from bench.core.host_info import as_line, describe_machine, now
from bench.core.results import keep
from bench.core.statistics import percentile
from bench.router.figures import FirstTokenRow, Percentiles, Throughput, as_series, report
from bench.router.site import Site, process_of, site_of
from bench.router.stream_load import (
    Streams,
    StreamSpec,
    Taken,
    first_token_s,
    one_hop_s,
    streams_to,
)
from cluster.api.event_streams import end
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.work_progress import tracked

_START_S = 60.0
_PARTS = ("speed", "first")
_PROBE_PAUSE_S = 0.015
_COALESCED = 24
# A request whose first token is timed: it is short, and uses both replicas.
PROBE = StreamSpec("coalesced", 5, _COALESCED, 1 + _COALESCED)
# Requested messages per second, by tokens in each: above the capacity, to find the maximum.
_ASKED_PER_S = {1: 24_000, _COALESCED: 8_000}


def main() -> None:
    """Measure everything and print it."""
    options = _parse()
    if options.load:
        asyncio.run(_load_for_ever(*options.load))
        return
    redis = EmbeddedRedis.start()
    try:
        with site_of(redis.url, options.prefill_ms, tls=options.tls) as site:
            results = asyncio.run(_measure(site, options))
    finally:
        redis.stop()
    print(f"{now()}; {as_line(describe_machine())}\n\n{report(*results)}")
    if options.results:
        names = ("seconds", "prefill_ms", "streams", "step_ms", "load_nice")
        conditions = {name: getattr(options, name) for name in names} | {"tls": int(options.tls)}
        machine = describe_machine()
        keep(options.results, "router", machine, [as_series(*results, machine, conditions)])


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement")
    parser.add_argument("--streams", type=int, default=100, help="streams at full speed")
    parser.add_argument(
        "--open", type=int, nargs="+", default=[0, 500], help="streams beside the first tokens"
    )
    parser.add_argument("--step-ms", type=int, default=250, help="between two messages of those")
    parser.add_argument(
        "--load-nice", type=int, default=0, help="niceness of the client of those streams"
    )
    parser.add_argument(
        "--prefill-ms", type=float, default=0.0, help="what a first token takes, by either way"
    )
    parser.add_argument("--front-ends", nargs="+", default=["grpc", "http"])
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument("--results", type=Path, help="the folder in which the figures are kept")
    parser.add_argument(
        "--tls",
        action="store_true",
        help="the router with TLS, to clients and to replicas; direct front ends and the echo of "
        "the replicas stay plain",
    )
    parser.add_argument("--load", nargs=5, help=argparse.SUPPRESS)
    return parser.parse_args()


async def _measure(
    site: Site, options: argparse.Namespace
) -> tuple[list[Throughput], list[FirstTokenRow]]:
    throughput = [
        await _full_speed(site, front_end, tokens, options)
        for front_end in tracked("full speed", options.front_ends)
        for tokens in _ASKED_PER_S
        if "speed" in options.parts
    ]
    ttft = [
        await _first_tokens(site, front_end, streams, options)
        for front_end in tracked("first tokens", options.front_ends)
        for streams in options.open
        if "first" in options.parts
    ]
    return throughput, ttft


async def _full_speed(
    site: Site, front_end: str, tokens: int, options: argparse.Namespace
) -> Throughput:
    step_ms = max(1, round(1000 * options.streams / _ASKED_PER_S[tokens]))
    spec = StreamSpec("each" if tokens == 1 else "coalesced", step_ms, tokens)
    client = site.streams(front_end)
    async with asyncio.timeout(_START_S + 10 * options.seconds):
        taken, tasks = await open_streams(client, spec, options.streams)
        await asyncio.sleep(1.0)
        before, marks, began = _cpu(site), [len(one.pieces) for one in taken], time.perf_counter()
        await asyncio.sleep(options.seconds)
        after, ends = _cpu(site), [len(one.pieces) for one in taken]
        window_s = time.perf_counter() - began
        await end(tasks)
    counts = [client.check(*one) for one in zip(taken, marks, ends, strict=True)]
    await client.close()
    messages = sum(count for count, _ in counts)
    spent = [1000 * (b - a) / messages for a, b in zip(before, after, strict=True)]
    in_all = sum(count for _, count in counts)
    return Throughput(front_end, tokens, messages / window_s, in_all / window_s, *spent)


async def _first_tokens(
    site: Site, front_end: str, streams: int, options: argparse.Namespace
) -> FirstTokenRow:
    """First tokens by each way in turn, beside open streams."""
    address, authority = site.front_ends[front_end], site.authority or ""
    loads = [front_end, address, authority, str(streams), str(options.step_ms)]
    with process_of("bench.router.main", "--load", *loads) as (load, read):
        os.setpriority(os.PRIO_PROCESS, load.pid, options.load_nice)
        await asyncio.to_thread(read)
        routed, direct = site.streams(front_end), site.direct(front_end)
        async with grpc.aio.insecure_channel(site.prefill["prefill"]) as channel:
            ways = (
                lambda: first_token_s(lambda taken: routed.run(PROBE, taken)),
                lambda: first_token_s(lambda taken: direct.run(PROBE, taken)),
                lambda: one_hop_s(channel),
            )
            probes = probe(ways, 3 * options.seconds)
            found = await asyncio.wait_for(probes, _START_S + 10 * options.seconds)
        await asyncio.gather(routed.close(), direct.close())
    rate = streams * 1000 / options.step_ms
    return FirstTokenRow(front_end, streams, rate, len(found[0]), *map(_percentiles, found))


async def probe(
    ways: Sequence[Callable[[], Awaitable[float]]], seconds: float
) -> list[list[float]]:
    """The seconds of each way, measured in turn, many times."""
    found: list[list[float]] = [[] for _ in ways]
    for _ in range(5):
        for way in ways:
            await way()
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        for way, took in zip(ways, found, strict=True):
            took.append(await way())
            await asyncio.sleep(_PROBE_PAUSE_S)
    return found


async def _load_for_ever(
    front_end: str, address: str, authority: str, streams: str, step_ms: str
) -> None:
    """Keep streams open in a process of its own; prints a line when all have begun."""
    client = streams_to(front_end, address, authority or None)
    spec = StreamSpec("coalesced", int(step_ms), _COALESCED)
    tasks: list[asyncio.Task[None]] = []
    taken: list[Taken] = []
    groups = 10
    for _ in range(groups):
        more, begun = await open_streams(client, spec, int(streams) // groups)
        taken, tasks = taken + more, tasks + begun
    print("{}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await end(tasks)
    for one in taken:
        client.check(one, 0, 0)


async def open_streams(
    client: Streams, spec: StreamSpec, streams: int
) -> tuple[list[Taken], list[asyncio.Task[None]]]:
    """Begin that many streams and wait until each has its first token."""
    taken = [Taken() for _ in range(streams)]
    tasks = [asyncio.create_task(client.run(spec, one)) for one in taken]
    while any(one.first_s is None for one in taken):
        await asyncio.sleep(0.02)
        for task in tasks:
            if task.done():
                task.result()
                raise RuntimeError("a stream ended early")
    return taken, tasks


def _cpu(site: Site) -> tuple[float, float, float]:
    """CPU seconds used so far by router, decode replica and this client."""
    return spent_s(site.router), spent_s(site.decode), time.process_time()


def spent_s(process: int) -> float:
    """The CPU seconds that a process has used so far, to the nanosecond."""
    # The clock that clock_getcpuclockid(3) names.
    return time.clock_gettime(~process << 3 | 2)


def _percentiles(seconds: list[float]) -> Percentiles:
    return Percentiles(1000 * percentile(seconds, 0.5), 1000 * percentile(seconds, 0.99))


if __name__ == "__main__":
    main()
