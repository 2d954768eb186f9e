"""Measures what it costs a router to be observed: all of it on beside all of it off, by turns.

    python -m bench.router.observing [--streams 500] [--seconds 3] [--turns 4] [--viewers 3]

On are the rows of the request log in files, a trace of each request, which a collector here takes,
and the console with viewers. It is the same process with and without, because two processes of one
router differ by 10 %. The router has a core for itself, if there are several, and all other
processes share the rest.

- `steady_cpu` measures the router's CPU at a steady rate, with open consoles and without. A router
  that its core bounds loses the same share of its tokens per second.
- Tokens per second at full speed are those over HTTP alone, and on two cores the other processes
  may bound them. Over gRPC the messages merge behind a slow client, so a slower client gets more.
- In the end `unwatched_console` adds up what the console takes while nobody looks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from bench.core.host_info import as_line, describe_machine, now
from bench.core.markdown_tables import table
from bench.core.results import Figure, keep, series_of, value_of
from bench.core.statistics import percentile
from bench.router.journal import full_speed
from bench.router.main import PROBE, probe, spent_s
from bench.router.site import Site, process_of, site_of
from bench.router.steady_cpu import observed, steady_cpu
from bench.router.stream_load import Taken, first_token_s
from bench.router.unwatched_console import console_shares
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.work_progress import tracked

_FRONT_ENDS = {"grpc": "gRPC", "http": "HTTP"}
# Clients of short requests, and how long a router has for the rows and spans of the last ones.
_CLIENTS = 8
_SETTLE_S = 2.0
_PARTS = ("cpu", "speed", "request", "first", "console")
_Measure = Callable[[], Awaitable[float]]
_MeasureOf = Callable[[Site, str, argparse.Namespace], Awaitable[float]]


def main() -> None:
    """Measure, print, and keep the figures where asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--viewers", type=int, default=3, help="open consoles")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument("--results", type=Path, help="the folder in which the figures are kept")
    parser.add_argument("--collect", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.collect:
        _collect()
        return
    found = _run(options)
    machine = describe_machine()
    rows = [[name, f"{one.value:.3f}"] for name, one in found.items()]
    print(f"{now()}; {as_line(machine)}\n\n{table(('observed over not', 'value'), rows)}")
    if options.results:
        conditions = {name: getattr(options, name) for name in ("streams", "seconds", "viewers")}
        series = series_of("observed", machine, conditions, found)
        keep(options.results, "router", machine, [series])


def _run(options: argparse.Namespace) -> dict[str, Figure]:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        # The processes that begin from here on stay on these cores, too.
        os.sched_setaffinity(0, cores[:-1])
    redis = EmbeddedRedis.start()
    with ExitStack() as stack:
        stack.callback(redis.stop)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        _, read = stack.enter_context(process_of("bench.router.observing", "--collect"))
        observed = (f"{folder}/rows", read()["otlp"])
        site = stack.enter_context(site_of(redis.url, 0.0, observed=observed))
        for thread in Path(f"/proc/{site.router}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores[-1:])
        found = asyncio.run(_measure(site, options))
    if "console" not in options.parts:
        return found
    _, unwatched = console_shares(options.streams, options.seconds, options.viewers)
    share = value_of(100 * unwatched.of_core, "% of a core", 1, "runs")
    return found | {"console, nobody looks": share}


async def _measure(site: Site, options: argparse.Namespace) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for front_end, title in _FRONT_ENDS.items():
        if "cpu" in options.parts:
            found |= await steady_cpu(site, front_end, title, options)
        for part, (measure, name) in _RATIOS.items():
            if part not in options.parts or (part, front_end) == ("speed", "grpc"):
                continue
            turns = tracked(f"observing, {title}, {name}", range(options.turns))
            bound = partial(measure, site, front_end, options)
            ratios = await _by_turns(site, bound, turns, options)
            shown = {"least": ratios[0], "p50": percentile(ratios, 0.5), "most": ratios[-1]}
            for what, ratio in shown.items():
                figure = value_of(ratio, "ratio", options.turns, "turns")
                found[f"{title}: {name}, {what}"] = figure
    return found


async def _by_turns(
    site: Site, measure: _Measure, turns: Iterable[int], options: argparse.Namespace
) -> list[float]:
    """The measure with all of it on over that without, of each turn, in ascending order."""
    ratios = []
    for turn in turns:
        taken: dict[bool, float] = {}
        # Neither is always the first of a turn.
        for on in (False, True) if turn % 2 == 0 else (True, False):
            async with observed(site, options.viewers) if on else nullcontext():
                taken[on] = await measure()
        ratios.append(taken[True] / taken[False])
    return sorted(ratios)


async def _request_cpu(site: Site, front_end: str, options: argparse.Namespace) -> float:
    """The router's CPU seconds for a request of a few tokens, with its row and its spans."""
    client, requests = site.streams(front_end), 0
    await client.run(PROBE, Taken())
    before_s, until_s = spent_s(site.router), time.perf_counter() + options.seconds

    async def ask() -> None:
        nonlocal requests
        while time.perf_counter() < until_s:
            await client.run(PROBE, Taken())
            requests += 1

    await asyncio.gather(*(ask() for _ in range(_CLIENTS)))
    await asyncio.sleep(_SETTLE_S)
    after_s = spent_s(site.router)
    await client.close()
    return (after_s - before_s) / requests


async def _first_token(site: Site, front_end: str, options: argparse.Namespace) -> float:
    """The median first token in seconds, of short requests one after the other."""
    client = site.streams(front_end)
    ways = [lambda: first_token_s(lambda taken: client.run(PROBE, taken))]
    (found,) = await probe(ways, options.seconds)
    await client.close()
    return percentile(found, 0.5)


_RATIOS: dict[str, tuple[_MeasureOf, str]] = {
    "speed": (full_speed, "tokens/s"),
    "request": (_request_cpu, "router's CPU for a short request"),
    "first": (_first_token, "first token"),
}


class _Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes traces and keeps none."""

    def Export(self, request: object, context: object) -> object:  # noqa: N802
        return trace_service_pb2.ExportTraceServiceResponse()


def _collect() -> None:
    """A collector of traces, until standard input ends."""
    server = grpc.server(ThreadPoolExecutor(1))
    add: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add(_Collector(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f'{{"otlp": "http://127.0.0.1:{port}"}}', flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        sys.stdin.read()
    server.stop(None)


if __name__ == "__main__":
    main()
