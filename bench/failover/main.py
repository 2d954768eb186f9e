"""Takes a decode replica away from 16 streams, and measures the pauses of the streams.

    python -m bench.failover.main [--fault kill|freeze|cut] [--runs 5] [--decode 3] [--model demo]

A replica is killed, frozen or cut off. A replica that is cut off goes on for nobody, on the cores
of the others. Half of the streams are greedy, half are sampled with a seed. They have 150 to 1,600
tokens of prompt and output at the fault, whose moment and replica are drawn by chance. Afterwards
the streams run undisturbed, and their tokens are compared. A run that takes too long, and Ctrl-C,
end the measurement with the table of the runs before.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from pathlib import Path
from typing import get_args

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
from bench.failover.member_processes import Fault, MemberProcesses, members
from cluster.api import Tokens
from cluster.work_progress import WorkProgress
from tandem_client import Client

_STREAMS = 16
# Prompts are long and answers short: a replica computes both again, and only answers take long.
_SHORTEST, _LONGEST = 100, 1500
_DONE = 50
_VOCABULARY = (300, 1500)
# Bound: one reading of all streams.
_READ_S = 90.0
_POLL_S = 0.005
_PARTS = ("under the fault", "another replica", "undisturbed")


@dataclass(slots=True)
class _Stream:
    """A stream: its prompt and options, its token ids, and when tokens came (s since the epoch).

    It had `done` tokens at the fault.
    """

    name: str
    prompt: list[int]
    options: dict[str, object]
    done: int = 0
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
    took = ""
    with members(model, options.decode, cables=options.fault == "cut") as found:
        try:
            with WorkProgress("failover", options.runs) as progress:
                for number in range(options.runs):
                    progress.at(number, took)
                    run, took = _run(found, options, random.Random(options.seed + number))
                    streams += run
        except (TimeoutError, KeyboardInterrupt) as error:
            print(f"run {number + 1} did not end: {error!r}", file=sys.stderr)
    if not streams:
        sys.exit("no run ended")
    machine = describe_machine()
    print(f"{now()}; {as_line(machine)}\n\n{report(streams)}")
    if options.results:
        names = ("decode", "model", "more", "seed")
        conditions = {name: getattr(options, name) for name in names} | {"streams": _STREAMS}
        conditions["runs"] = len(streams) // _STREAMS
        series = as_series(streams, f"{options.fault}, {options.model}", machine, conditions)
        keep(options.results, "failover", machine, [series])


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fault", choices=get_args(Fault), default="kill")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--decode", type=int, default=3, help="decode replicas before the fault")
    parser.add_argument("--model", choices=["demo", "135m"], default="demo")
    parser.add_argument("--more", type=int, default=300, help="tokens of a stream after the fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=Path(".bench"), help="the folder of models")
    parser.add_argument("--results", type=Path, help="the folder in which the figures are kept")
    return parser.parse_args()


def _run(
    found: MemberProcesses, options: argparse.Namespace, chance: random.Random
) -> tuple[list[FaultedStream], str]:
    """One run: its streams, and how long its parts took."""
    streams = [_stream(number, options.more, chance) for number in range(_STREAMS)]
    again = [_Stream(one.name, one.prompt, one.options) for one in streams]
    times_s = [time.monotonic()]
    lost, fault_s = asyncio.run(_disturbed(found, streams, options.fault, chance))
    times_s.append(time.monotonic())
    logs = found.logs()
    found.replace(lost)
    times_s.append(time.monotonic())
    asyncio.run(_undisturbed(found, again))
    times_s.append(time.monotonic())
    took = [
        f"{name} {end - begin:.0f} s"
        for name, (begin, end) in zip(_PARTS, pairwise(times_s), strict=True)
    ]
    for one, other in zip(streams, again, strict=True):
        if one.ids != other.ids:
            equal = (mine == its for mine, its in zip(one.ids, other.ids, strict=False))
            same = sum(takewhile(bool, equal))
            print(f"{one.name} differs from token {same} on; it had {one.done} at the fault")
    faulted = [
        FaultedStream(
            added_pause_s(one.arrivals_s, fault_s),
            one.ids == other.ids,
            stages_s(one.name, logs, fault_s, one.arrivals_s),
        )
        for one, other in zip(streams, again, strict=True)
    ]
    return faulted, f"the last run: {', '.join(took)}"


async def _disturbed(
    found: MemberProcesses, streams: list[_Stream], fault: Fault, chance: random.Random
) -> tuple[str, float]:
    """Read the streams, under a fault; returns the lost replica and the time of the fault."""
    async with asyncio.timeout(_READ_S), Client(found.router) as client:
        tasks = await _begun(client, streams)
        await asyncio.sleep(chance.uniform(0, 0.3))
        lost, fault_s = chance.choice(found.decode), time.time()
        found.strike(lost, fault)
        for one in streams:
            one.done = len(one.ids)
        await asyncio.gather(*tasks)
    return lost, fault_s


async def _undisturbed(found: MemberProcesses, streams: list[_Stream]) -> None:
    async with asyncio.timeout(_READ_S), Client(found.router) as client:
        await asyncio.gather(*(one.read(client, f"{one.name}-again") for one in streams))


def _stream(number: int, more: int, chance: random.Random) -> _Stream:
    length = _SHORTEST + (_LONGEST - _SHORTEST) * number // (_STREAMS - 1)
    prompt = [chance.randrange(*_VOCABULARY) for _ in range(length)]
    options: dict[str, object] = {"max_tokens": _DONE + more, "ignore_eos": True}
    options |= {"temperature": 0.0} if number % 2 else {"temperature": 1.0}
    options["seed"] = number
    return _Stream(f"s{chance.getrandbits(32):08x}", prompt, options)


async def _begun(client: Client, streams: list[_Stream]) -> list[asyncio.Task[None]]:
    """Begin all streams, and wait until each has `_DONE` tokens."""
    tasks = [asyncio.create_task(one.read(client, one.name)) for one in streams]
    while not all(len(one.ids) >= _DONE for one in streams):
        _raise_failures(tasks)
        await asyncio.sleep(_POLL_S)
    return tasks


def _raise_failures(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()


if __name__ == "__main__":
    main()
