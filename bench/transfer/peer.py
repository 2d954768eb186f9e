"""The other process of `bench.transfer.main`: receives KV and raw messages, by JSON orders.

It prints one line for each finished order, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from ctypes import memmove
from functools import partial
from typing import Any

import torch

from bench.transfer.floor import BUFFERS, Ahead
from bench.transfer.shape import FRAME_BYTES, HOST, SECRET, cache_for, channel_spec, transfer_config
from engine import kernels
from engine.kv.cache import KvCache
from kv_transfer.receiver import KvReceiver, OfferedKv, Peer
from kv_transfer.transports.selection import open_channel
from kv_transfer.transports.transport import RECEIVER_RANK, Receipt, Wait
from protos.wire.client import Connector


def receive_tcp(port: int, warm: int, messages: int, answered: bool) -> None:
    """Receive frames from the parent's port; each or only the last is answered with a byte."""
    buffers = [memoryview(bytearray(FRAME_BYTES)) for _ in range(BUFFERS)]
    with socket.create_connection((HOST, port), timeout=20) as connection:
        for left in (*range(warm - 1, -1, -1), *range(messages - 1, -1, -1)):
            buffer, filled = buffers[left % BUFFERS], 0
            while filled < FRAME_BYTES:
                filled += connection.recv_into(buffer[filled:])
            if answered or not left:
                connection.send(b"x")


def receive_channel(
    transport: str, port: int, prefix: str, warm: int, messages: int, ahead: int
) -> None:
    """Receive that many frames from a channel, into a few buffers in turn."""
    channel = open_channel(channel_spec(transport, port, prefix, RECEIVER_RANK))
    buffers = [torch.zeros(FRAME_BYTES, dtype=torch.uint8) for _ in range(BUFFERS)]

    def post(index: int) -> Wait:
        staging = buffers[index % BUFFERS]
        return partial(_take, channel.receive(staging, FRAME_BYTES), staging)

    receiver = Ahead(post, ahead)
    receiver.post(warm)
    receiver.post(messages)
    channel.close()


def _take(receipt: Receipt, staging: torch.Tensor, timeout_s: float) -> None:
    """Wait for the message; copies a message that is read in place, as `time_memcpy` does."""
    arrived = receipt(timeout_s)
    if arrived.data.data_ptr() != staging.data_ptr():
        memmove(staging.data_ptr(), arrived.data.data_ptr(), FRAME_BYTES)
    arrived.taken()


class Receiving:
    """One KvReceiver on one cache; transfer i of a round goes to the i-th range of blocks."""

    def __init__(self, transport: str, cache: KvCache) -> None:
        connector = Connector(SECRET)
        self._receiver = KvReceiver(
            "bench-decode", HOST, cache, transfer_config(transport), connector
        )

    async def receive(self, address: str, names: list[str]) -> list[float]:
        """Receive all of these at once; returns the time of each commit (`time.perf_counter`)."""
        peer = Peer("bench-prefill", address)

        async def one(index: int, name: str) -> float:
            async def admit(offered: OfferedKv) -> tuple[list[int], int]:
                first = index * offered.blocks
                return list(range(first, first + offered.blocks)), 1

            await self._receiver.receive(peer, name, admit, 60.0)
            return time.perf_counter()

        return list(await asyncio.gather(*(one(*item) for item in enumerate(names))))

    async def close(self) -> None:
        """End the links."""
        await self._receiver.close()


async def obey(blocks: int) -> None:
    """Carry the orders out, one after the other."""
    torch.set_num_threads(1)
    kernels.why_not_loaded()  # loads the operations that copy borrowed blocks
    receiving: dict[str, Receiving] = {}
    print(json.dumps({"done": "start"}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        order: dict[str, Any] = json.loads(line)
        what, answer = order.pop("do"), {}
        if what == "tcp":
            await asyncio.to_thread(receive_tcp, **order)
        elif what == "channel":
            await asyncio.to_thread(receive_channel, **order)
        elif what == "kv":
            transport = order.pop("transport")
            if transport not in receiving:
                receiving[transport] = Receiving(transport, cache_for(blocks, transport))
            answer = {"committed_s": await receiving[transport].receive(**order)}
        print(json.dumps({"done": what, **answer}), flush=True)
    for side in receiving.values():
        await side.close()


if __name__ == "__main__":
    asyncio.run(obey(int(sys.argv[1])))
