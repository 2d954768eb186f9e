"""`make bench-transfer`: one link between two processes here, against what it could do."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import torch

from bench.machine import as_line, describe_machine
from bench.rates import Spread
from bench.tables import table
from bench.transfer_floor import time_lane, time_memcpy, time_parts, time_tcp
from bench.transfer_shape import HOST, LAYOUT, cache_for, transfer_config
from engine.kv_cache import KvCache
from kv_transfer.sender import KvSender, OutgoingKv

RESULTS = Path("bench/results")
TRANSPORTS = ("shared_memory", "gloo")
PROMPTS = (1024, 4096, 32_768)
FLIGHTS = (1, 8, 32)
FLIGHT_TOKENS = 1024
BLOCKS = max(PROMPTS) // LAYOUT.block_size
RAW_ROUNDS, REPEATS = 3, 3


@dataclass(frozen=True, slots=True)
class Lane:
    """Bytes per second of one transport's lane, and of the plain copy it is held against."""

    transport: str
    rate: Spread
    raw: Spread
    raw_name: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """So many requests of one length at once: seconds until all are committed, and the floor."""

    transport: str
    tokens: int
    requests: int
    bytes: int
    seconds: Spread
    floor_s: float

    @property
    def of_floor(self) -> float:
        """How many times the floor."""
        return self.seconds.median / self.floor_s


class Other:
    """The receiving process."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "bench.transfer_peer", str(BLOCKS)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.hear()

    def tell(self, **order: Any) -> None:
        """Give it something to do."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Wait until it is done; RuntimeError when it has ended instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the receiving process has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def measure_lanes(other: Other) -> list[Lane]:
    """The lanes alone, beside plain copies of the same frames."""
    rates: dict[str, list[float]] = {}
    ways: dict[str, Callable[[], float]] = {
        "memcpy": time_memcpy,
        "TCP": partial(time_tcp, other.tell, other.hear),
        "Gloo": partial(time_lane, "gloo", other.tell, other.hear),
        "shared_memory": partial(time_lane, "shared_memory", other.tell, other.hear),
        "gloo": partial(time_lane, "gloo", other.tell, other.hear),
    }
    for _ in range(RAW_ROUNDS):
        for name, measure in ways.items():
            rates.setdefault(name, []).append(measure())
    spreads = {name: Spread(tuple(values)) for name, values in rates.items()}
    plain = max(("TCP", "Gloo"), key=lambda name: spreads[name].median)
    raw = {"shared_memory": "memcpy", "gloo": plain}
    return [Lane(name, spreads[name], spreads[raw[name]], raw[name]) for name in TRANSPORTS]


async def measure_hand_overs(
    transport: str, link_rate: float, cache: KvCache, other: Other
) -> list[HandOver]:
    """Whole hand-overs, from the call to the commit, of one prompt and of many at once."""
    sender = KvSender("bench-prefill", HOST, cache, transfer_config(transport))
    await sender.start()
    server = grpc.aio.server()
    address = f"{HOST}:{server.add_insecure_port(f'{HOST}:0')}"
    sender.add_to(server)
    await server.start()
    found = []
    try:
        await hand_over(sender, other, transport, address, FLIGHT_TOKENS, 1)
        sizes = [(tokens, 1) for tokens in PROMPTS]
        sizes += [(FLIGHT_TOKENS, requests) for requests in FLIGHTS[1:]]
        for tokens, requests in sizes:
            parts = time_parts(cache, list(range(tokens * requests // LAYOUT.block_size)), 3)
            times = [
                await hand_over(sender, other, transport, address, tokens, requests)
                for _ in range(REPEATS)
            ]
            floor_s = parts.floor_s(link_rate)
            spread = Spread(tuple(times))
            found.append(HandOver(transport, tokens, requests, parts.bytes, spread, floor_s))
    finally:
        await sender.close()
        await server.stop(0)
    return found


async def hand_over(
    sender: KvSender, other: Other, transport: str, address: str, tokens: int, requests: int
) -> float:
    """Seconds until all are committed, of which none was offered before all are expected."""
    blocks = tokens // LAYOUT.block_size
    names = [f"{time.monotonic_ns()}-{index}" for index in range(requests)]
    other.tell(do="kv", transport=transport, address=address, names=names, early=False)
    await asyncio.sleep(0.2)
    started = time.perf_counter()
    offers = (
        OutgoingKv(name, "bench-decode", tuple(range(i * blocks, (i + 1) * blocks)), tokens, 1)
        for i, name in enumerate(names)
    )
    await asyncio.gather(*(sender.hand_over(offer, 60.0) for offer in offers))
    seconds = time.perf_counter() - started
    await asyncio.to_thread(other.hear)
    return seconds


def report(lanes: list[Lane], hand_overs: list[HandOver], machine: str) -> str:
    """Both tables in Markdown."""
    gigabyte = 1e9

    def rate(spread: Spread) -> str:
        return Spread(tuple(value / gigabyte for value in spread.values)).show(2)

    header = ["data lane alone, GB/s, median [range]", "lane", "plain copy", "of it"]
    rows = [
        [lane.transport, rate(lane.rate), f"{rate(lane.raw)} {lane.raw_name}", share(lane)]
        for lane in lanes
    ]
    second = ["hand-over", "MB", "ms, median [range]", "GB/s", "floor ms", "of the floor"]
    more = [
        [
            f"{each.transport}, {each.requests} of {each.tokens:,} tokens",
            f"{each.bytes / 1e6:,.1f}",
            Spread(tuple(1000 * value for value in each.seconds.values)).show(1),
            f"{each.bytes / each.seconds.median / gigabyte:.2f}",
            f"{1000 * each.floor_s:,.1f}",
            f"{each.of_floor:.2f}",
        ]
        for each in hand_overs
    ]
    notes = (
        "- Frames of 8 MiB between two processes. The floor is gather, link, one checksum and "
        "scatter of the same bytes, each timed alone and added up.\n"
        f"- {machine}"
    )
    return f"{table(header, rows)}\n\n{table(second, more)}\n\n{notes}\n"


def share(lane: Lane) -> str:
    """The lane's rate as a part of the plain copy's."""
    return f"{lane.rate.median / lane.raw.median:.0%}"


async def run() -> None:
    """Measure, and write `bench/results/transfer.{json,md}`."""
    # As on the threads of a replica that copy: a second thread would share the other's core.
    torch.set_num_threads(1)
    cache = cache_for(BLOCKS)
    other = Other()
    try:
        lanes = measure_lanes(other)
        hand_overs: list[HandOver] = []
        for lane in lanes:
            hand_overs += await measure_hand_overs(lane.transport, lane.raw.median, cache, other)
    finally:
        other.close()
    machine = describe_machine()
    text = report(lanes, hand_overs, as_line(machine))
    found = {
        "machine": machine,
        "lanes": [asdict(lane) for lane in lanes],
        "hand_overs": [asdict(each) for each in hand_overs],
    }
    (RESULTS / "transfer.json").write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / "transfer.md").write_text(text)
    print(text)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    asyncio.run(run())
