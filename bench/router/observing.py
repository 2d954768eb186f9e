"""Measures what it costs a router to be observed: all of it on beside all of it off, by turns.

    python -m bench.router.observing [--streams 500] [--seconds 3] [--turns 4] [--viewers 3]

On are the rows of the request log in files, a trace of each request, which a collector here takes,
and the console with viewers. Two routers, each with replicas of its own, stand beside each other.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from bench.core.host_info import as_line, describe_machine, now
from bench.core.markdown_tables import table
from bench.core.results import Figure, Series, keep, value_of
from bench.core.statistics import percentile
from bench.router.journal import tokens_per_s
from bench.router.main import PROBE, probe
from bench.router.site import Site, process_of, site_of
from bench.router.stream_load import first_token_s
from cluster.api.event_streams import end
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.work_progress import tracked

_ANSWERS_S = 10.0
_FRONT_ENDS = {"grpc": "gRPC", "http": "HTTP"}
_PIECE = 1 << 16


def main() -> None:
    """Measure, print, and keep the figures where asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--viewers", type=int, default=3, help="open consoles")
    parser.add_argument("--results", type=Path, help="the folder in which the figures are kept")
    parser.add_argument("--collect", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.collect:
        _collect()
        return
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        _, read = stack.enter_context(process_of("bench.router.observing", "--collect"))
        seen = stack.enter_context(_site(f"{folder}/rows", read()["otlp"]))
        found = asyncio.run(_measure(stack.enter_context(_site()), seen, options))
    machine = describe_machine()
    rows = [[name, f"{one.value:.3f}"] for name, one in found.items()]
    print(f"{now()}; {as_line(machine)}\n\n{table(('observed over not', 'value'), rows)}")
    if options.results:
        conditions = {name: getattr(options, name) for name in ("streams", "seconds", "viewers")}
        series = Series(
            name="observed",
            commit=machine["commit"],
            date=machine["date"],
            conditions=conditions,
            figures=found,
        )
        keep(options.results, "router", machine, [series])


@contextmanager
def _site(*observed: str) -> Iterator[Site]:
    redis = EmbeddedRedis.start()
    try:
        with site_of(redis.url, 0.0, observed=observed) as site:
            yield site
    finally:
        redis.stop()


async def _measure(plain: Site, seen: Site, options: argparse.Namespace) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    async with _watched(seen.front_ends["http"], options.viewers):
        for front_end, title in _FRONT_ENDS.items():
            rates: tuple[list[float], list[float]] = ([], [])
            for turn in tracked(f"observing, {title}", range(options.turns)):
                # Neither is always the first of a turn.
                for which in (0, 1) if turn % 2 == 0 else (1, 0):
                    site = (plain, seen)[which]
                    rates[which].append(await tokens_per_s(site, front_end, options))
            ratios = sorted(b / a for a, b in zip(*rates, strict=True))
            for what, ratio in (("least", ratios[0]), ("p50", percentile(ratios, 0.5))):
                name = f"{title}: tokens/s, {what}"
                found[name] = value_of(ratio, "ratio", options.turns, "turns")
            first, second = await _first_tokens_ms(plain, seen, front_end, options)
            name = f"{title}: first token p50"
            found[name] = value_of(first, "ms", 1, "runs")
            found[f"{name}, observed over not"] = value_of(second / first, "ratio", 1, "runs")
    return found


async def _first_tokens_ms(
    plain: Site, seen: Site, front_end: str, options: argparse.Namespace
) -> tuple[float, float]:
    """The median first token of each router in ms, by turns, of whole short requests."""
    clients = [site.streams(front_end) for site in (plain, seen)]
    ways = [
        lambda client=client: first_token_s(lambda taken: client.run(PROBE, taken))
        for client in clients
    ]
    first, second = await probe(ways, 4 * options.seconds)
    for client in clients:
        await client.close()
    return 1000 * percentile(first, 0.5), 1000 * percentile(second, 0.5)


@asynccontextmanager
async def _watched(address: str, viewers: int) -> AsyncIterator[None]:
    """Consoles that are open meanwhile; ConnectionError where the router has none."""
    host, _, port = address.rpartition(":")
    tasks, writers = [], []
    for _ in range(viewers):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /console/feed HTTP/1.1\r\nhost: {address}\r\n\r\n".encode())
        status = await asyncio.wait_for(reader.readline(), _ANSWERS_S)
        if b" 200 " not in status:
            raise ConnectionError(f"the console answered {status!r}")
        tasks.append(asyncio.create_task(_read(reader)))
        writers.append(writer)
    try:
        yield
    finally:
        for writer in writers:
            writer.close()
        await end(tasks)


async def _read(reader: asyncio.StreamReader) -> None:
    while await reader.read(_PIECE):
        pass


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
