"""`make bench-transfer`: one link between two processes, against its floor."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from functools import partial

import torch

from bench.core.host_info import as_line, describe_machine
from bench.core.results import RESULTS, keep
from bench.core.statistics import Spread
from bench.transfer.floor import time_channel, time_copy, time_memcpy, time_parts, time_tcp
from bench.transfer.hand_over import BLOCKS, HandOverLoad, ReceivingProcess, measure
from bench.transfer.report import RAW_ROUNDS, ChannelFigures, as_markdown, as_series
from bench.transfer.shape import BORROWED, cache_for
from cluster.work_progress import tracked
from engine import kernels
from kv_transfer.transports.gloo import GlooChannel
from kv_transfer.transports.shared_memory import SharedMemoryChannel

# With the number of messages that a link posts before it waits for the first.
TRANSPORTS = {"shared_memory": SharedMemoryChannel.ahead, "gloo": GlooChannel.ahead}


def plain_copies(other: ReceivingProcess) -> dict[str, Callable[[], float]]:
    """Functions by name that time a plain copy of large messages, in bytes per second."""
    return {
        "memcpy": time_memcpy,
        "TCP, each frame answered": partial(time_tcp, other.tell, other.hear, answered=True),
        "TCP, one stream": partial(time_tcp, other.tell, other.hear, answered=False),
        "Gloo, one by one": partial(time_channel, "gloo", 1, other.tell, other.hear),
    }


def measure_channels(other: ReceivingProcess) -> list[ChannelFigures]:
    """Measure the channels alone, in turn with plain copies of the same frames."""
    rates: dict[str, list[float]] = {}
    plain = plain_copies(other)
    ways = dict(plain)
    for name, ahead in TRANSPORTS.items():
        ways[name] = partial(time_channel, name, ahead, other.tell, other.hear)
    for _ in tracked("channels", range(RAW_ROUNDS)):
        for name, way in ways.items():
            rates.setdefault(name, []).append(way())
    spreads = {name: Spread(tuple(values)) for name, values in rates.items()}
    fastest = max(plain.keys() - {"memcpy"}, key=lambda name: spreads[name].median)
    raw = {"shared_memory": "memcpy", "gloo": fastest}
    return [
        ChannelFigures(name, spreads[name], spreads[raw[name]], raw[name]) for name in TRANSPORTS
    ]


async def measure_borrowed(other: ReceivingProcess) -> list[HandOverLoad]:
    """Measure hand-overs without a channel; none if the copy kernels cannot be built here."""
    if kernels.why_not_loaded() is not None:
        return []
    cache, target = cache_for(BLOCKS, BORROWED), cache_for(BLOCKS, BORROWED)
    return await measure(BORROWED, partial(time_copy, cache, target), None, cache, other)


async def run() -> None:
    """Measure, print, and keep the figures."""
    # One thread, as on a replica's copy thread; a second thread would share the other's core.
    torch.set_num_threads(1)
    other = ReceivingProcess()
    try:
        channels = measure_channels(other)
        hand_overs = await measure_borrowed(other)
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
    print(as_markdown(channels, hand_overs, as_line(machine)))
    keep(RESULTS, "transfer", machine, [as_series(channels, hand_overs, machine)])


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    asyncio.run(run())
