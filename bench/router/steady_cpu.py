"""What a router pays at a steady rate, by its own CPU: unobserved, observed, and with pages open.

CPU does not depend on what bounds tokens/s, and the rate is the same in all turns. The same streams
run through all of them. Beside the streams short requests come and end, with their rows and traces.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from statistics import median
from typing import NamedTuple

from bench.core.results import RESAMPLED, Figure, value_of
from bench.core.statistics import between
from bench.router.main import PROBE, open_streams, spent_s
from bench.router.site import Site
from bench.router.stream_load import Streams, StreamSpec, Taken
from bench.router.unwatched_console import open_page
from cluster.api.event_streams import end
from cluster.work_progress import tracked

# Tokens per second of all streams, a message for each: less than half of what a router can do.
_TOKENS_PER_S = {"grpc": 4000, "http": 8000}
# Short requests: as many as end each second at the rate above, if answers have 200 to 400 tokens.
_REQUESTS_PER_S = 20
# What a change begins and ends is over by then: rows and spans wait for a second at most.
_SETTLE_S = 1.2
# Turns of this measure for each turn of the others, which take longer.
_MORE_TURNS = 2
_OFF, _UNWATCHED, _WATCHED = "off", "nobody looks", "pages look"
_LEVELS = (_OFF, _UNWATCHED, _WATCHED)


class Spent(NamedTuple):
    """The router's CPU for 1,000 tokens in milliseconds, and its part of a core in percent."""

    token_ms: float
    of_core: float


class CpuWindow(NamedTuple):
    """CPU and time of one measurement in seconds, and the pieces of each stream at its ends."""

    cpu_s: float
    took_s: float
    begins: list[int]
    ends: list[int]

    def spent(self, client: Streams, taken: Sequence[Taken]) -> Spent:
        """What the router spent, by what the streams have got.

        Raises RuntimeError where a stream got no token: heartbeats alone keep it open.
        """
        spans = zip(taken, self.begins, self.ends, strict=True)
        counts = [client.count(one.pieces[begin:stop])[1] for one, begin, stop in spans]
        if silent := counts.count(0):
            raise RuntimeError(f"{silent} streams got no token: this machine is too busy")
        tokens = sum(counts)
        return Spent(1e6 * self.cpu_s / tokens, 100 * self.cpu_s / self.took_s)


async def steady_cpu(
    site: Site, front_end: str, title: str, options: argparse.Namespace
) -> dict[str, Figure]:
    """The figures of one front end; `more` is what the router pays for being observed."""
    client = site.streams(front_end)
    step_ms = max(1, round(1000 * options.streams / _TOKENS_PER_S[front_end]))
    taken, tasks = await open_streams(client, StreamSpec("each", step_ms), options.streams)
    asking = asyncio.create_task(_ask_steadily(client))
    windows: list[dict[str, CpuWindow]] = []
    for turn in tracked(f"observing, {title}, CPU", range(_MORE_TURNS * options.turns)):
        windows.append({})
        # None is always the first of a turn.
        first = turn % len(_LEVELS)
        for level in _LEVELS[first:] + _LEVELS[:first]:
            viewers = options.viewers if level == _WATCHED else 0
            async with nullcontext() if level == _OFF else observed(site, viewers):
                await asyncio.sleep(_SETTLE_S)
                windows[-1][level] = await _window(site, taken, options.seconds)
    if any(task.done() for task in (*tasks, asking)):
        raise RuntimeError("a request ended early: this machine is too busy to measure")
    await end([*tasks, asking])
    await client.close()
    for one in taken:
        client.check(one, 0, 0)
    turns = [{name: one.spent(client, taken) for name, one in each.items()} for each in windows]
    return {f"{title}: router's CPU, {name}": one for name, one in _figures(turns).items()}


def _figures(turns: Sequence[Mapping[str, Spent]]) -> dict[str, Figure]:
    off_ms = [one[_OFF].token_ms for one in turns]
    figures = {"1,000 tokens, off": _figure(off_ms, "ms")}
    for level in (_UNWATCHED, _WATCHED):
        ratios = [one[level].token_ms / one[_OFF].token_ms for one in turns]
        figures[f"1,000 tokens, {level} over off"] = _figure(ratios, "ratio")
        more = [one[level].of_core - one[_OFF].of_core for one in turns]
        figures[f"{level}, more"] = _figure(more, "% of a core")
    return figures


@asynccontextmanager
async def observed(site: Site, viewers: int) -> AsyncIterator[None]:
    """Rows, traces, and pages that look; ConnectionError where the router has no console."""
    os.kill(site.router, signal.SIGUSR1)
    try:
        async with AsyncExitStack() as pages:
            for _ in range(viewers):
                await pages.enter_async_context(open_page(site.front_ends["http"]))
            yield
    finally:
        os.kill(site.router, signal.SIGUSR2)


async def _window(site: Site, taken: Sequence[Taken], seconds: float) -> CpuWindow:
    before_s, began_s = spent_s(site.router), time.perf_counter()
    begins = [len(one.pieces) for one in taken]
    await asyncio.sleep(seconds)
    cpu_s, took_s = spent_s(site.router) - before_s, time.perf_counter() - began_s
    return CpuWindow(cpu_s, took_s, begins, [len(one.pieces) for one in taken])


async def _ask_steadily(client: Streams) -> None:
    """Begin a short request again and again, and wait for none."""
    async with asyncio.TaskGroup() as requests:
        while True:
            requests.create_task(client.run(PROBE, Taken()))
            await asyncio.sleep(1 / _REQUESTS_PER_S)


def _figure(values: list[float], unit: str) -> Figure:
    return value_of(median(values), unit, len(values), "turns", between(values), RESAMPLED)
