"""Runs a load against a server, and records the run."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

from bench.core.host_info import stolen_s
from bench.load.arrivals import BURST, Load
from bench.load.closed_loop import ServerTarget
from bench.load.goodput import Budgets, LoadFigures, figures
from bench.load.metrics_poller import MetricsPoller, TimeSeries
from bench.load.open_loop import LoadProgress, OpenLoop, Rules, Show, show
from bench.load.request_outcome import Count, Outcome, one_each, read

_SHOW_S = 1.0


@dataclass(frozen=True, slots=True)
class LoadRun:
    """A load that was sent to `system`, and its outcomes. `machine` is a description in words.

    `client_cores` is the processor time of the client over the time that the load took,
    `host_cores` the cores that the host took meanwhile; None if the system does not tell it.
    """

    system: str
    load: Load
    budgets: Budgets
    outcomes: tuple[Outcome, ...]
    watched: dict[str, TimeSeries]
    machine: dict[str, str]
    client_cores: float = 0.0
    host_cores: float | None = None

    def figures(self) -> LoadFigures:
        """Percentiles, goodput and refusals."""
        return figures(self.load, self.outcomes, self.budgets)

    def shaded(self) -> list[tuple[float, float]]:
        """The begin and end of each burst."""
        return [(begin, end) for name, begin, end in self.load.spans if name == BURST]

    def as_data(self) -> dict[str, object]:
        """The run as data for JSON."""
        return {
            "system": self.system,
            "load": self.load.title,
            "seed": self.load.seed,
            "spans": self.load.spans,
            "budgets": asdict(self.budgets),
            "machine": self.machine,
            "client_cores": self.client_cores,
            "host_cores": self.host_cores,
            "figures": asdict(self.figures()),
            "requests": [asdict(outcome) for outcome in self.outcomes],
            "watched": self.watched,
        }


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends loads: with rules for each request, a count of tokens, and polled metrics.

    `show` is told each second how far a load is.
    """

    rules: Rules = field(default_factory=Rules)
    budgets: Budgets = field(default_factory=Budgets)
    count: Count = one_each
    show: Show | None = None

    async def send(
        self,
        system: str,
        server: ServerTarget,
        load: Load,
        machine: dict[str, str],
        watch: MetricsPoller | None,
    ) -> LoadRun:
        """Send a load and read its outcomes, within its length and the rules' deadline."""
        requests = requests_of(load, server)
        loop = OpenLoop(server.target, load, requests, self.rules, LoadProgress(len(requests)))
        tasks = [asyncio.create_task(watch.run())] if watch else []
        if self.show:
            tasks.append(asyncio.create_task(show(loop, self.show, _SHOW_S)))
        try:
            with _without_collection():
                started, used, stolen = time.perf_counter(), time.process_time(), stolen_s()
                tries = await loop.run()
                took_s = time.perf_counter() - started
                cores, now_stolen = (time.process_time() - used) / took_s, stolen_s()
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if self.show:
            self.show(load.seconds, str(loop.progress))
        outcomes = [
            read(tried, load.arrivals[tried.index], loop.zero, self.count) for tried in tries
        ]
        outcomes.sort(key=lambda one: (one.index, one.number))
        watched = watch.series(loop.zero) if watch else {}
        host = None
        if stolen is not None and now_stolen is not None:
            host = (now_stolen - stolen) / took_s
        return LoadRun(system, load, self.budgets, tuple(outcomes), watched, machine, cores, host)


def requests_of(load: Load, server: ServerTarget) -> Sequence[bytes]:
    """The bytes of every request, with prompts of token ids."""
    return [
        server.completion(load.prompt(index, server.vocabulary), arrival.new_tokens)
        for index, arrival in enumerate(load.arrivals)
    ]


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Disable garbage collection, which would show as a stall of every stream."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
