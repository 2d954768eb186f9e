"""A sender or receiver in a process of its own, to be killed and frozen by `test_processes`.

Speaks JSON lines: says `{"address": …}` first, then one line for each transfer that ends. A sender
offers all transfers at once; its channel is slow from the first frame on if asked to.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from engine.errors import TandemError
from kv_transfer.receiver import Peer
from kv_transfer.sender import OutgoingKv
from kv_transfer.transports.fault_injection import Fault, FaultPlan, FaultyOpener
from kv_transfer.transports.selection import open_channel
from tests.kv_transfer.rig import (
    LAYOUT,
    apart,
    make_cache,
    receiving,
    same,
    sending,
)

BLOCKS = 24


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def opener(slow_s: float) -> FaultyOpener:
    return FaultyOpener(open_channel, [FaultPlan(Fault.SLOW, 0, slow_s)] if slow_s else [])


async def send(
    name: str, receiver: str, transfers: int, slow_s: float, transport: str = "gloo"
) -> None:
    borrowed = transport == "borrowed"
    cache = make_cache(seed=1, borrowed=borrowed)
    config = apart("shared_memory" if borrowed else transport)
    async with sending(name, config, cache, opener(slow_s)) as side:
        say(address=side.peer.address)

        async def one(index: int) -> None:
            tokens = BLOCKS * LAYOUT.block_size
            kv = OutgoingKv(f"t{index}", receiver, tuple(range(BLOCKS)), tokens, index)
            try:
                say(transfer=index, bytes=await side.sender.hand_over(kv, 60.0))
            except TandemError as error:
                say(transfer=index, error=type(error).__name__)

        await asyncio.gather(*(one(index) for index in range(transfers)))
        await asyncio.Event().wait()


async def receive(
    name: str,
    sender: str,
    address: str,
    transfers: int,
    slow_s: float,
    transport: str = "gloo",
) -> None:
    source, target = make_cache(seed=1), make_cache()
    async with receiving(name, apart(transport), target, opener(slow_s)) as (receiver, _):
        say(address="")
        blocks = list(range(BLOCKS))

        async def admit(_: Any) -> tuple[list[int], int]:
            return blocks, 1

        for index in range(transfers):
            try:
                await receiver.receive(Peer(sender, address), f"{name}-{index}", admit, 60.0)
                say(transfer=index, same=same(source, blocks, target, blocks))
            except TandemError as error:
                say(transfer=index, error=type(error).__name__)


if __name__ == "__main__":
    role, arguments = sys.argv[1], json.loads(sys.argv[2])
    asyncio.run({"send": send, "receive": receive}[role](**arguments))
