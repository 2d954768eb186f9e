"""A sender or receiver of large blocks over NIXL in a process of its own, for
`test_remote_processes`.

Speaks JSON lines as `peer_process` does. A receiver with `dies` sends itself that signal amid its
first read.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from dataclasses import replace
from typing import Any

from engine.errors import TandemError
from engine.kv.layout import KvLayout, LayerShape
from kv_transfer.receiver import Peer
from kv_transfer.sender import OutgoingKv
from kv_transfer.transports.selection import open_channel
from tests.kv_transfer.peer_process import say
from tests.kv_transfer.rig import QUICK, make_cache, receiving, same, sending

# 2 MiB a block, and all of a transfer in one read, so that a signal comes amid it.
LAYOUT = KvLayout((LayerShape(8, 128),) * 4, 64, "float32", "large")
BLOCKS = 24
CONFIG = replace(QUICK, transport="nixl", frame_bytes=64 << 20, io_timeout_s=5.0)
AMID_S = 0.01


class Amid:
    """Opens channels whose first long read is disturbed a moment after its begin."""

    def __init__(self, disturb) -> None:
        self.disturb = disturb

    def __call__(self, spec):
        channel = open_channel(spec)
        read = channel.read

        def disturbed(there, here, sizes, timeout_s):
            if self.disturb is not None and sizes.sum() > (1 << 20):
                disturb, self.disturb = self.disturb, None
                threading.Timer(AMID_S, disturb).start()
            read(there, here, sizes, timeout_s)

        channel.read = disturbed
        return channel


def offered(name: str, receiver: str) -> OutgoingKv:
    tokens = BLOCKS * LAYOUT.block_size
    return OutgoingKv(name, receiver, tuple(range(BLOCKS)), tokens, 1)


async def send(name: str) -> None:
    async with sending(name, CONFIG, make_cache(BLOCKS, LAYOUT, seed=1)) as side:
        say(address=side.peer.address)
        for index in range(3):
            try:
                say(bytes=await side.sender.hand_over(offered(f"t{index}", "d0"), 60.0))
            except TandemError as error:
                say(error=type(error).__name__)
        await asyncio.Event().wait()


async def receive(name: str, address: str, dies: int = 0) -> None:
    source, target = make_cache(BLOCKS, LAYOUT, seed=1), make_cache(BLOCKS, LAYOUT)
    opener = Amid((lambda: os.kill(os.getpid(), dies)) if dies else None)
    async with receiving(name, CONFIG, target, opener) as (receiver, _):
        say(address="")
        blocks = list(range(BLOCKS))

        async def admit(_: Any) -> tuple[list[int], int]:
            return blocks, 1

        await receiver.receive(Peer("p0", address), f"{name}-t", admit, 60.0)
        say(same=same(source, blocks, target, blocks))


if __name__ == "__main__":
    role, arguments = sys.argv[1], json.loads(sys.argv[2])
    asyncio.run({"send": send, "receive": receive}[role](**arguments))
