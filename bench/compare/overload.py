"""Measures a cluster under several times its capacity, over each front end.

    python -m bench.compare.overload [--factor 5] [--seconds 300] [--front-ends grpc http]

It starts `tandem serve` with the demo model, finds the capacity in a closed loop, offers a multiple
of it, and then watches until single requests are served in time again.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Sequence

from bench.core.host_info import as_line, describe_machine, now
from bench.core.results import keep
from bench.load.overload_client import (
    OK,
    GrpcClient,
    HttpClient,
    OverloadAnswer,
    OverloadClient,
)
from bench.load.overload_figures import Overload, as_series, report
from bench.systems.cli_paths import add_paths, demo_paths
from bench.systems.services import Service, tandem
from cluster.work_progress import WorkProgress

_DEADLINE_S = 60.0
_WARM_S, _CAPACITY_S, _CALLERS = 4.0, 10.0, 24
_WATCH_S, _PROBE_PAUSE_S = 20.0, 0.2
_LONGEST_RETRY_S = 2.0
_SHOW_S = 1.0
_WORDS = ("the", "one", "many", "of", "some", "red", "old", "small", "river", "house", "paper")


def main() -> None:
    """Measure and print."""
    options = _parse()
    paths = demo_paths(options)
    budget = f"endpoints: {{chat: {{ttft_budget_ms: {options.budget_ms}}}}}\n"
    service = tandem(paths, options.prefill, options.decode, more=budget)
    found: list[Overload] = []
    with service.running(paths.logs):
        asyncio.run(_measure(service, options, found))
    machine = describe_machine()
    print(f"{now()}; {as_line(machine)}\n\n{report(found)}")
    names = ("factor", "seconds", "words", "answer", "budget_ms", "prefill", "decode")
    conditions = {name: getattr(options, name) for name in names}
    series = [as_series(one, machine, conditions) for one in found]
    keep(options.results, "overload", machine, series)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--factor", type=float, default=5.0, help="offered load over capacity")
    parser.add_argument("--seconds", type=float, default=300.0, help="length of the overload")
    parser.add_argument("--capacity", type=float, help="requests a second, if it is known")
    parser.add_argument("--front-ends", nargs="+", default=["grpc", "http"])
    parser.add_argument("--words", type=int, default=128, help="words of a prompt")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--budget-ms", type=int, default=500, help="the TTFT budget")
    parser.add_argument("--prefill", type=int, default=2, help="prefill replicas")
    parser.add_argument("--decode", type=int, default=2, help="decode replicas")
    add_paths(parser)
    return parser.parse_args()


async def _measure(service: Service, options: argparse.Namespace, found: list[Overload]) -> None:
    """Measure one front end after the other."""
    for front_end in options.front_ends:
        client = _client(service, front_end)
        try:
            capacity = options.capacity or await _capacity(client, options)
            print(f"{front_end}: {capacity:.1f} requests/s", flush=True)
            found.append(await _overload(client, front_end, capacity, options))
        finally:
            await client.close()


def _client(service: Service, front_end: str) -> OverloadClient:
    if front_end == "grpc":
        return GrpcClient(f"127.0.0.1:{service.grpc_port}", _DEADLINE_S)
    return HttpClient(service.target.target.port, _DEADLINE_S)


async def _capacity(client: OverloadClient, options: argparse.Namespace) -> float:
    """Requests a second that are served to callers who wait and return as they are told."""
    served, began_s = 0, time.perf_counter() + _WARM_S

    async def call(number: int) -> None:
        nonlocal served
        prompts = _Prompts(options.words, f"capacity/{number}")
        while (at_s := time.perf_counter()) < began_s + _CAPACITY_S:
            answer = await client.send(prompts.next(), options.answer)
            served += answer.outcome == OK and at_s >= began_s
            if answer.outcome != OK:
                await asyncio.sleep(min(answer.retry_s or 0.1, _LONGEST_RETRY_S))

    await asyncio.gather(*(call(number) for number in range(_CALLERS)))
    return served / (time.perf_counter() - began_s)


async def _overload(
    client: OverloadClient, front_end: str, capacity: float, options: argparse.Namespace
) -> Overload:
    """Send a multiple of the capacity as a Poisson process, then single requests."""
    rate = options.factor * capacity
    prompts, draw = _Prompts(options.words, front_end), random.Random(0)
    answers: list[OverloadAnswer] = []

    async def send() -> None:
        answers.append(await client.send(prompts.next(), options.answer))

    due_s = time.perf_counter()
    end_s = due_s + options.seconds
    with WorkProgress(f"overload, {front_end}", options.seconds + _WATCH_S, "s") as progress:
        async with asyncio.TaskGroup() as tasks:
            showing = tasks.create_task(_show(progress, answers))
            while due_s < end_s:
                await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
                tasks.create_task(send())
                due_s += draw.expovariate(rate)
            ended_s = time.perf_counter()
            probes = await _probe(client, prompts, options.answer)
            showing.cancel()
    return Overload(front_end, capacity, rate, options.budget_ms / 1000, ended_s, answers, probes)


async def _show(progress: WorkProgress, answers: Sequence[OverloadAnswer]) -> None:
    began_s = time.perf_counter()
    while True:
        progress.at(time.perf_counter() - began_s, f"{len(answers):,} answers")
        await asyncio.sleep(_SHOW_S)


async def _probe(client: OverloadClient, prompts: _Prompts, tokens: int) -> list[OverloadAnswer]:
    until_s, probes = time.perf_counter() + _WATCH_S, []
    while time.perf_counter() < until_s:
        probes.append(await client.send(prompts.next(), tokens))
        await asyncio.sleep(_PROBE_PAUSE_S)
    return probes


class _Prompts:
    """Prompts of so many words, no two alike, and without a common prefix."""

    def __init__(self, words: int, name: str) -> None:
        self._words = words
        self._name = name
        self._draw = random.Random(name)
        self._made = 0

    def next(self) -> str:
        self._made += 1
        chosen = self._draw.choices(_WORDS, k=self._words - 1)
        return " ".join((f"{self._name}{self._made}", *chosen))


if __name__ == "__main__":
    main()
