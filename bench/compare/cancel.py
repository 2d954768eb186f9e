"""Measures how fast a cancel frees the pools, and the delay of prompts behind cancelled ones.

    python -m bench.compare.cancel [--rounds 20] [--long 10] [--streams 4] [--closed 12]

First, on the fresh server, many streams are closed at once, and the time is taken from their close
until no replica has a request.
Each round sends long prompts to `tandem serve`. It cancels all of them once the prefill replica has
them, and sends a short prompt at once. The client has one connection for each request.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from bench.core.host_info import as_line, describe_machine, now
from bench.core.markdown_tables import table
from bench.core.prompts import prompt_ids
from bench.core.results import Series, keep, series_of, value_of
from bench.core.statistics import percentile
from bench.core.tandem_config import WIDE
from bench.load.client import send_request
from bench.load.closed_loop import ServerTarget
from bench.load.http_recording import BadAnswer
from bench.systems.cli_paths import add_paths, prepare
from bench.systems.services import Service, tandem
from cluster.api.event_streams import end
from cluster.client.admin_client import fetch_status
from cluster.telemetry.router_metrics import TIME_TO_CANCEL
from cluster.work_progress import tracked

_SHORT_TOKENS, _LONG_TOKENS = 32, 1500
_CLOSED_TOKENS = 64
_DEADLINE_S = 120.0
_FOR_EVER_S = 3600.0
_POLL_S = 0.005
# The longest time of a cancel, in seconds; a bucket of the metric ends there.
_GOAL_S = 0.25


@dataclass(frozen=True, slots=True)
class CancelFigures:
    """First tokens in seconds; cancels by the bound in seconds that they took at most.

    `closed` are the seconds from the close of all streams until all replicas were idle.
    """

    alone: list[float]
    behind: list[float]
    cancels: dict[float, float]
    closed: list[float]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--long", type=int, default=10, help="long prompts in each round")
    parser.add_argument("--streams", type=int, default=4, help="streams that run beside")
    parser.add_argument("--closed", type=int, default=12, help="streams that are closed at once")
    add_paths(parser)
    options = parser.parse_args()
    paths = prepare(options)
    # With the default ITL budget of 60 ms slow cores form batches that are too small for all.
    service = tandem(paths, more=WIDE)
    with service.running(paths.logs) as server:
        measured = asyncio.run(_measure(options, service, server))
    print(f"{now()}; {as_line(describe_machine())}\n")
    rows = [
        _row("first token of a short prompt, alone", measured.alone),
        _row(f"the same behind {options.long} cancelled ones", measured.behind),
        _row(f"from the close of {options.closed} streams until all is idle", measured.closed),
    ]
    print(table(("ms", "median", "p99", "most", "of"), rows))
    ratio = statistics.median(measured.behind) / statistics.median(measured.alone)
    print(f"\nratio of the medians: {ratio:.2f}")
    print(cancels_in_words(measured.cancels))
    machine = describe_machine()
    conditions = {name: getattr(options, name) for name in ("rounds", "long", "streams", "closed")}
    keep(options.results, "cancel", machine, [as_series(measured, machine, conditions)])


def cancels_in_words(cancels: dict[float, float]) -> str:
    """The number of cancels within the goal, and the bound for 99 of 100 of them.

    `cancels` is a histogram as Prometheus has it: counts up to each bound in seconds.
    """
    count = max(cancels.values(), default=0.0)
    if not count:
        return "no cancel was counted"
    p99_s = bound_of_most(cancels)
    return (
        f"time to cancel: {cancels[_GOAL_S]:.0f} of {count:.0f} within {1000 * _GOAL_S:.0f} ms, "
        f"p99 at most {1000 * p99_s:.0f} ms"
    )


def bound_of_most(cancels: dict[float, float]) -> float:
    """The bound (seconds) within which 99 of 100 cancels are; there is one cancel at least."""
    count = max(cancels.values())
    return min(bound for bound, within in cancels.items() if within >= 0.99 * count)


def as_series(
    measured: CancelFigures, machine: dict[str, str], conditions: dict[str, str | int | float]
) -> Series:
    """The series of one run."""
    alone, behind = (statistics.median(times) for times in (measured.alone, measured.behind))
    rounds = len(measured.alone)
    figures = {
        "alone: TTFT p50": value_of(1000 * alone, "ms", rounds, "requests"),
        "behind ten cancelled prompts: TTFT p50": value_of(1000 * behind, "ms", rounds, "requests"),
        "behind over alone: TTFT p50": value_of(behind / alone, "x", 1, "runs"),
    }
    if measured.closed:
        p99_ms, n = 1000 * percentile(measured.closed, 0.99), len(measured.closed)
        figures["closed at once: until idle p99"] = value_of(p99_ms, "ms", n, "rounds")
    count = int(max(measured.cancels.values(), default=0))
    if count:
        within = measured.cancels[_GOAL_S] / count
        bound_ms = 1000 * bound_of_most(measured.cancels)
        figures["cancels: within 250 ms"] = value_of(within, "of 1", count, "cancels")
        figures["cancels: 99 of 100 within"] = value_of(bound_ms, "ms", count, "cancels")
    return series_of("cancel", machine, conditions, figures)


async def _measure(
    options: argparse.Namespace, service: Service, server: ServerTarget
) -> CancelFigures:
    closed = [
        await _closed_s(service, server, options.closed, f"closed/{number}")
        for number in range(options.rounds)
    ]
    others = [
        asyncio.create_task(_stream_for_ever(server, number)) for number in range(options.streams)
    ]
    alone, behind = [], []
    for number in tracked("cancels", range(-1, options.rounds)):  # the first one is to warm it up
        alone.append(await _first_token_s(server, f"alone/{number}"))
        await _abandon(service, server, options.long, f"long/{number}")
        behind.append(await _first_token_s(server, f"behind/{number}"))
    await end(others)
    await asyncio.sleep(1.0)
    return CancelFigures(alone[1:], behind[1:], await _cancels(server), closed)


async def _closed_s(service: Service, server: ServerTarget, count: int, name: str) -> float:
    """Seconds from the close of so many running streams until no replica has a request."""
    requests = [_request(server, _CLOSED_TOKENS, 1000, f"{name}/{one}") for one in range(count)]
    tasks = await _on_replicas(service, "decode", server, requests)
    async with asyncio.timeout(_DEADLINE_S):
        began = time.perf_counter()
        await end(tasks)
        while await _busy(service, "prefill", "decode"):  # noqa: ASYNC110 - it polls the router
            await asyncio.sleep(_POLL_S)
    return time.perf_counter() - began


async def _stream_for_ever(server: ServerTarget, number: int) -> None:
    for again in range(10_000):
        await send_request(
            server.target, _request(server, 8, 1000, f"stream/{number}/{again}"), _FOR_EVER_S
        )


async def _first_token_s(server: ServerTarget, name: str) -> float:
    answer = await send_request(
        server.target, _request(server, _SHORT_TOKENS, 2, name), _DEADLINE_S
    )
    return answer.first_token_s()


async def _abandon(service: Service, server: ServerTarget, count: int, name: str) -> None:
    """Send long prompts, wait until the replica has all of them, and cancel them."""
    requests = [_request(server, _LONG_TOKENS, 50, f"{name}/{number}") for number in range(count)]
    await end(await _on_replicas(service, "prefill", server, requests))


async def _on_replicas(
    service: Service, role: str, server: ServerTarget, requests: Sequence[bytes]
) -> list[asyncio.Task[Any]]:
    """Send requests, and wait until the replicas of that role have all of them."""
    tasks = [asyncio.create_task(send_request(server.target, one, _DEADLINE_S)) for one in requests]
    async with asyncio.timeout(_DEADLINE_S):
        while await _busy(service, role) < len(tasks):  # noqa: ASYNC110 - it polls the router
            await asyncio.sleep(_POLL_S)
    return tasks


async def _busy(service: Service, *roles: str) -> int:
    """The requests on the replicas of these roles, as they reported to the router."""
    status = await fetch_status(f"127.0.0.1:{service.grpc_port}")
    return sum(one.waiting + one.running for one in status.replicas if one.role in roles)


async def _cancels(server: ServerTarget) -> dict[float, float]:
    """The router's histogram of the time to cancel."""
    answer = await send_request(server.target, server.target.get("/metrics"), _DEADLINE_S)
    for family in text_string_to_metric_families(answer.body().decode()):
        if family.name == TIME_TO_CANCEL.name:
            return {
                float(one.labels["le"]): one.value
                for one in family.samples
                if one.name.endswith("_bucket")
            }
    raise BadAnswer(f"the router has no {TIME_TO_CANCEL.name}")


def _request(server: ServerTarget, tokens: int, new: int, name: str) -> bytes:
    return server.completion(prompt_ids(tokens, server.vocabulary, name), new)


def _row(name: str, seconds: list[float]) -> tuple[str, ...]:
    figures = (f"{1000 * percentile(seconds, share):.1f}" for share in (0.5, 0.99, 1.0))
    return (name, *figures, str(len(seconds)))


if __name__ == "__main__":
    main()
