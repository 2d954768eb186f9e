"""Kills or freezes a decode replica under 16 streams, and measures the pauses of the streams.

    python -m bench.failover.main [--fault kill|freeze] [--runs 5] [--decode 3] [--model demo]

Half of the streams are greedy, half are sampled with a seed. They have 50 to 1,500 tokens at the
fault, whose moment and replica are drawn by chance. Afterwards the streams run undisturbed, and
their tokens are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import time
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from bench.core import model_135m
from bench.core.host_info import as_line, describe_machine, now
from bench.core.results import keep
from bench.failover.figures import (
    FaultedStream,
    added_pause_s,
    as_series,
    report,
    stages_s,
)
from bench.failover.member_processes import MemberProcesses, members
from cluster.api import Tokens
from tandem_client import Client

_STREAMS = 16
_FEWEST, _MOST = 50, 1500
_PROMPT = 100
_VOCABULARY = (300, 1500)
_RUN_S = 600.0
_POLL_S = 0.005
_SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}


@dataclass(slots=True)
class _Stream:
    """A stream: its prompt and options, its token ids, and when tokens came (s since the epoch).

    It is to have `done` tokens at the fault, and then it is the number that it had.
    """

    name: str
    prompt: list[int]
    options: dict[str, object]
    done: int
    ids: list[int] = field(default_factory=list)
    arrivals_s: list[float] = field(default_factory=list)

    async def read(self, client: Client, name: str) -> None:
        """Read the stream to its end."""
        options: dict[str, object] = self.options | {"request_id": name}
        async for event in client.generate(self.prompt, **options):  # type: ignore[arg-type]
            if isinstance(event, Tokens):
                if event.index != len(self.ids):
                    raise RuntimeError(f"{name}: token {event.index} after {len(self.ids)}")
                self.ids += event.ids
                self.arrivals_s.append(time.time())


def main() -> None:
    """Measure and print."""
    options = _parse()
    model = options.model
    if model == "135m":
        model = str(model_135m.make(options.cache / "135m"))
    streams: list[FaultedStream] = []
    with members(model, options.decode) as found:
        for number in range(options.runs):
            chance = random.Random(options.seed + number)
            streams += _run(found, options, chance)
    machine = describe_machine()
    print(f"{now()}; {as_line(machine)}\n\n{report(streams)}")
    if options.results:
        names = ("runs", "decode", "model", "more", "seed")
        conditions = {name: getattr(options, name) for name in names} | {"streams": _STREAMS}
        series = as_series(streams, f"{options.fault}, {options.model}", machine, conditions)
        keep(options.results, "failover", machine, [series])


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fault", choices=[*_SIGNALS], default="kill")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--decode", type=int, default=3, help="decode replicas before the fault")
    parser.add_argument("--model", choices=["demo", "135m"], default="demo")
    parser.add_argument("--more", type=int, default=400, help="tokens of a stream after the fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=Path(".bench"), help="the folder of models")
    parser.add_argument("--results", type=Path, help="the folder in which the figures are kept")
    return parser.parse_args()


def _run(
    found: MemberProcesses, options: argparse.Namespace, chance: random.Random
) -> list[FaultedStream]:
    streams = [_stream(number, options.more, chance) for number in range(_STREAMS)]
    again = [_Stream(one.name, one.prompt, one.options, 0) for one in streams]
    lost, fault_s = asyncio.run(_disturbed(found, streams, _SIGNALS[options.fault], chance))
    logs = found.logs()
    found.replace(lost)
    asyncio.run(_undisturbed(found, again))
    for one, other in zip(streams, again, strict=True):
        if one.ids != other.ids:
            equal = (mine == its for mine, its in zip(one.ids, other.ids, strict=False))
            same = sum(takewhile(bool, equal))
            print(f"{one.name} differs from token {same} on; it had {one.done} at the fault")
    return [
        FaultedStream(
            added_pause_s(one.arrivals_s, fault_s),
            one.ids == other.ids,
            stages_s(one.name, logs, fault_s, one.arrivals_s),
        )
        for one, other in zip(streams, again, strict=True)
    ]


async def _disturbed(
    found: MemberProcesses, streams: list[_Stream], fault: signal.Signals, chance: random.Random
) -> tuple[str, float]:
    """Read the streams, under a fault; returns the lost replica and the time of the fault."""
    async with asyncio.timeout(_RUN_S), Client(found.router) as client:
        tasks = await _begun(client, streams)
        await asyncio.sleep(chance.uniform(0, 0.3))
        lost, fault_s = chance.choice(found.decode), time.time()
        found.signal(lost, fault)
        for one in streams:
            one.done = len(one.ids)
        await asyncio.gather(*tasks)
    return lost, fault_s


async def _undisturbed(found: MemberProcesses, streams: list[_Stream]) -> None:
    async with asyncio.timeout(_RUN_S), Client(found.router) as client:
        await asyncio.gather(*(one.read(client, f"{one.name}-again") for one in streams))


def _stream(number: int, more: int, chance: random.Random) -> _Stream:
    done = _FEWEST + (_MOST - _FEWEST) * (_STREAMS - 1 - number) // (_STREAMS - 1)
    prompt = [chance.randrange(*_VOCABULARY) for _ in range(_PROMPT)]
    options: dict[str, object] = {"max_tokens": done + more, "ignore_eos": True}
    options |= {"temperature": 0.0} if number % 2 else {"temperature": 1.0}
    options["seed"] = number
    return _Stream(f"s{chance.getrandbits(32):08x}", prompt, options, done)


async def _begun(client: Client, streams: list[_Stream]) -> list[asyncio.Task[None]]:
    """Begin each stream so that the streams reach their `done` tokens about together."""
    first, tasks = streams[0], list[asyncio.Task[None]]()
    for one in streams:
        while tasks and len(first.ids) < first.done - one.done:
            _raise_failures(tasks)
            await asyncio.sleep(_POLL_S)
        tasks.append(asyncio.create_task(one.read(client, one.name)))
    while not all(one.ids for one in streams) or len(first.ids) < first.done:
        _raise_failures(tasks)
        await asyncio.sleep(_POLL_S)
    return tasks


def _raise_failures(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()


if __name__ == "__main__":
    main()
