"""`make bench-transfer`: one link between two processes here, against what it could do."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from bench.core.host_info import as_line, describe_machine
from bench.core.markdown_tables import table
from bench.core.statistics import Spread
from bench.transfer.floor import (
    BUFFERS,
    median_parts,
    time_channel,
    time_copy,
    time_memcpy,
    time_parts,
    time_tcp,
)
from bench.transfer.hand_over import (
    BLOCKS,
    CHUNK,
    ROUNDS,
    SLICE_S,
    TOKENS_PER_S,
    HandOver,
    Other,
    measure,
)
from bench.transfer.shape import LENT, cache_for
from engine import kernels
from kv_transfer.transports.gloo import GlooChannel
from kv_transfer.transports.shared_memory import SharedMemoryChannel

RESULTS = Path("bench/results")
# With as many messages as a link posts before it waits for the first.
TRANSPORTS = {"shared_memory": SharedMemoryChannel.ahead, "gloo": GlooChannel.ahead}
RAW_ROUNDS = 31


@dataclass(frozen=True, slots=True)
class Lane:
    """Bytes per second of one transport's channel, and of the plain copy it is held against."""

    transport: str
    rate: Spread
    raw: Spread
    raw_name: str


def plain_copies(other: Other) -> dict[str, Callable[[], float]]:
    """By name, what times a plain copy of large messages: bytes per second."""
    return {
        "memcpy": time_memcpy,
        "TCP, each frame answered": partial(time_tcp, other.tell, other.hear, answered=True),
        "TCP, one stream": partial(time_tcp, other.tell, other.hear, answered=False),
        "Gloo, one by one": partial(time_channel, "gloo", 1, other.tell, other.hear),
    }


def measure_channels(other: Other) -> list[Lane]:
    """The channels alone, beside plain copies of the same frames, by turns."""
    rates: dict[str, list[float]] = {}
    plain = plain_copies(other)
    ways = dict(plain)
    for name, ahead in TRANSPORTS.items():
        ways[name] = partial(time_channel, name, ahead, other.tell, other.hear)
    for _ in range(RAW_ROUNDS):
        for name, way in ways.items():
            rates.setdefault(name, []).append(way())
    spreads = {name: Spread(tuple(values)) for name, values in rates.items()}
    fastest = max(plain.keys() - {"memcpy"}, key=lambda name: spreads[name].median)
    raw = {"shared_memory": "memcpy", "gloo": fastest}
    return [Lane(name, spreads[name], spreads[raw[name]], raw[name]) for name in TRANSPORTS]


async def measure_lent(other: Other) -> list[HandOver]:
    """Hand-overs without a channel; none where this machine cannot build what copies them."""
    if kernels.why_not_loaded() is not None:
        return []
    cache, target = cache_for(BLOCKS, LENT), cache_for(BLOCKS, LENT)
    return await measure(LENT, partial(time_copy, cache, target), None, cache, other)


def report(channels: list[Lane], hand_overs: list[HandOver], machine: str) -> str:
    """Both tables in Markdown."""
    gigabyte = 1e9

    def rate(spread: Spread) -> str:
        return Spread(tuple(value / gigabyte for value in spread.values)).show(2)

    header = ["data channel alone, GB/s, median [range]", "channel", "plain copy", "of it"]
    rows = [
        [
            channel.transport,
            rate(channel.rate),
            f"{rate(channel.raw)} {channel.raw_name}",
            share(channel),
        ]
        for channel in channels
    ]
    second = ["hand-over", "MB", "ms, median [range]", "GB/s", "floor ms", "of the floor"]
    more = [
        [
            f"{each.transport}, {each.requests} of {each.tokens:,} tokens",
            f"{each.parts[0].bytes / 1e6:,.1f}",
            Spread(tuple(1000 * value for value in each.seconds.values)).show(1),
            f"{each.parts[0].bytes / each.seconds.median / gigabyte:.2f}",
            f"{1000 * each.floor_s:,.1f}",
            f"{each.of_floor:.2f}",
        ]
        for each in hand_overs
        if not each.early
    ]
    third = ["while it is computed", "MB", "exposed ms, median [range]", "floor ms", "of the floor"]
    last = [
        [
            f"{each.transport}, {each.tokens:,} tokens",
            f"{each.parts[0].bytes / 1e6:,.1f}",
            Spread(tuple(1000 * value for value in each.seconds.values)).show(1),
            f"{1000 * each.floor_s:,.1f}",
            f"{each.of_floor:.0%}",
        ]
        for each in hand_overs
        if each.early
    ]
    notes = (
        f"- Frames of up to 8 MiB between two processes; {BUFFERS} buffers on each side of "
        "a channel and of a plain copy. The floor is gather, link, one checksum and scatter of "
        "the same bytes, each timed alone and added up; a hand-over that does them at the same "
        "time can be below it. Where KV is lent the floor is one copy by one thread.\n"
        f"- Medians of rounds in which each thing has its turn: {RAW_ROUNDS} for channels and "
        f"plain copies, {ROUNDS} for a hand-over, its parts and its link.\n"
        f"- {parts_alone(hand_overs)}\n"
        f"- While it is computed: the computing is played by waiting, {CHUNK} tokens at a time at "
        f"{TOKENS_PER_S:,} tokens/s, layers reported every {1000 * SLICE_S:.0f} ms as by a "
        "replica's loop; exposed is what is left from the last layer to the commit.\n"
        f"- {machine}"
    )
    return f"{table(header, rows)}\n\n{table(second, more)}\n\n{table(third, last)}\n\n{notes}\n"


def parts_alone(hand_overs: list[HandOver]) -> str:
    """What each part costs by itself, of the longest prompt."""
    framed = [each for each in hand_overs if each.transport != LENT]
    parts = median_parts(max(framed, key=lambda each: each.tokens).parts)

    def rate(seconds: float) -> str:
        return f"{parts.bytes / seconds / 1e9:.1f} GB/s"

    return (
        f"By themselves: gather {rate(parts.gather_s)}, checksum {rate(parts.checksum_s)}, "
        f"scatter {rate(parts.scatter_s)}."
    )


def share(channel: Lane) -> str:
    """The channel's rate as a part of the plain copy's."""
    return f"{channel.rate.median / channel.raw.median:.0%}"


async def run() -> None:
    """Measure, and write `bench/results/transfer.{json,md}`."""
    # As on the threads of a replica that copy: a second thread would share the other's core.
    torch.set_num_threads(1)
    other = Other()
    try:
        channels = measure_channels(other)
        hand_overs = await measure_lent(other)
        for channel in channels:
            cache, time_link = (
                cache_for(BLOCKS, channel.transport),
                plain_copies(other)[channel.raw_name],
            )
            time_floor = partial(time_parts, cache)
            hand_overs += await measure(channel.transport, time_floor, time_link, cache, other)
    finally:
        other.close()
    machine = describe_machine()
    text = report(channels, hand_overs, as_line(machine))
    found = {
        "machine": machine,
        "channels": [asdict(channel) for channel in channels],
        "hand_overs": [asdict(each) for each in hand_overs],
    }
    (RESULTS / "transfer.json").write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / "transfer.md").write_text(text)
    print(text)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    asyncio.run(run())
