"""Senders and receivers on 127.0.0.1, with KV whose every byte is known."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from cluster.sockets import join, listening_socket
from engine import kernels
from engine.kv.block_pool import OutOfBlocks
from engine.kv.cache import KvCache
from engine.kv.layout import KvLayout, LayerShape
from kv_transfer.config import TransferConfig
from kv_transfer.links.link_stream import MOST_LINK_BYTES
from kv_transfer.receiver import KvReceiver, OfferedKv, Peer, ReceivedKv
from kv_transfer.sender import KvSender, OutgoingKv
from kv_transfer.transports.nixl.channel import NixlChannel
from kv_transfer.transports.selection import open_channel
from protos.wire.client import Connector
from protos.wire.secret import ClusterSecret
from protos.wire.server import WireServer
from protos.wire.streams import StreamServer

HOST = "127.0.0.1"
SECRET = ClusterSecret(b"the secret of the tests")
CONNECTOR = Connector(SECRET)
# Layers of two shapes; a block is 3,328 bytes.
LAYOUT = KvLayout(
    layers=(LayerShape(2, 8), LayerShape(2, 8), LayerShape(1, 4), LayerShape(2, 8)),
    block_size=8,
    dtype="float32",
    model_identity="m",
)
# Several frames for anything over two blocks, one layer with many blocks in parts.
QUICK = TransferConfig(transport="gloo", frame_bytes=8192, io_timeout_s=5.0, connect_timeout_s=5.0)


needs_nixl = pytest.mark.skipif(
    NixlChannel.unavailable() is not None, reason="nixl is not installed: tandem-serve[nixl]"
)
OVER_NIXL = pytest.param("nixl", marks=needs_nixl)
# `borrowed` is shared memory where the receiver copies out of the sender's blocks.
TRANSPORTS = ["loopback", "gloo", "shared_memory", "borrowed", OVER_NIXL]


def make_cache(
    blocks: int = 64, layout: KvLayout = LAYOUT, seed: int | None = None, *, borrowed: bool = False
) -> KvCache:
    """A cache of zeros, or of numbers drawn from the seed; one whose blocks can be `borrowed`."""
    cache = KvCache(layout, blocks, torch.device("cpu"))
    if borrowed:
        if (why := kernels.why_not_loaded()) is not None:
            pytest.skip(f"the C++ operations copy borrowed blocks: {why}")
        # In name only, because a copy takes blocks as they are.
        cache.formats = ["pairs"] * len(layout.layers)
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        for layer in cache.layers:
            layer.copy_(torch.rand(layer.shape, generator=generator))
    return cache


def same(source: KvCache, blocks: list[int], target: KvCache, written: list[int]) -> bool:
    """Whether the written blocks hold exactly the bytes of the source blocks."""
    return all(
        torch.equal(mine[:, blocks], theirs[:, written])
        for mine, theirs in zip(source.layers, target.layers, strict=True)
    )


def untouched(cache: KvCache, but: list[int] | tuple[int, ...] = ()) -> bool:
    """Whether all blocks but those are still zero."""
    rest = [block for block in range(cache.blocks) if block not in set(but)]
    return all(not layer[:, rest].any() for layer in cache.layers)


class Blocks:
    """Pools of blocks whose takers wait for one another."""

    def __init__(self):
        self.freed = asyncio.Event()

    async def take(self, pool, owner, count):
        while True:
            try:
                return pool.allocate(owner, count)
            except OutOfBlocks:
                self.freed.clear()
                await self.freed.wait()

    def free(self, pool, owner):
        pool.release(owner)
        self.freed.set()


@dataclass
class SenderSide:
    cache: KvCache
    sender: KvSender
    server: WireServer
    peer: Peer


@asynccontextmanager
async def serving_links(serve, secret: ClusterSecret = SECRET) -> AsyncIterator[WireServer]:
    """A member's port whose connections for `link` are served so."""
    sock, streams = listening_socket(HOST, 0), StreamServer(serve, MOST_LINK_BYTES)
    server = WireServer(secret, {"link": streams.accept})
    await server.start(sock, join(HOST, sock.getsockname()[1]))
    try:
        yield server
    finally:
        await server.stop()
        await streams.stop()


@asynccontextmanager
async def sending(
    name: str = "p0",
    config: TransferConfig = QUICK,
    cache: KvCache | None = None,
    opener=open_channel,
) -> AsyncIterator[SenderSide]:
    cache = cache or make_cache(seed=1)
    sender = KvSender(name, HOST, cache, config, opener)
    sender.start()
    async with serving_links(sender.serve_link) as server:
        try:
            yield SenderSide(cache, sender, server, Peer(name, server.address))
        finally:
            await sender.close()


@asynccontextmanager
async def receiving(
    name: str = "d0",
    config: TransferConfig = QUICK,
    cache: KvCache | None = None,
    opener=open_channel,
) -> AsyncIterator[tuple[KvReceiver, KvCache]]:
    cache = cache or make_cache()
    receiver = KvReceiver(name, HOST, cache, config, CONNECTOR, opener)
    try:
        yield receiver, cache
    finally:
        await receiver.close()


@dataclass
class Pair:
    """One sender and one receiver in this process."""

    source: KvCache
    target: KvCache
    sender: KvSender
    receiver: KvReceiver
    peer: Peer
    server: WireServer

    def offer(self, transfer: str, blocks: list[int], timeout_s: float = 10.0) -> asyncio.Task[int]:
        tokens = len(blocks) * LAYOUT.block_size - 3
        kv = OutgoingKv(transfer, "d0", tuple(blocks), tokens, first_token=len(blocks))
        return asyncio.create_task(self.sender.hand_over(kv, timeout_s))

    def take(
        self, transfer: str, blocks: list[int], timeout_s: float = 10.0, before_admit=None
    ) -> asyncio.Task[ReceivedKv]:
        """Receive into those blocks; `before_admit` is awaited before they are given."""

        async def admit(offered: OfferedKv) -> tuple[list[int], int]:
            assert offered.blocks == len(blocks)
            if before_admit is not None:
                await before_admit()
            return blocks, 1

        return asyncio.create_task(self.receiver.receive(self.peer, transfer, admit, timeout_s))

    async def move(self, transfer: str, blocks: list[int], written: list[int]) -> ReceivedKv:
        sent, received = await asyncio.gather(
            self.offer(transfer, blocks), self.take(transfer, written)
        )
        assert sent == received.bytes == len(blocks) * self.source.block_bytes(0, 4)
        assert received.first_token == len(blocks)
        assert same(self.source, blocks, self.target, written)
        return received

    def idle(self) -> bool:
        """Nothing is left of any transfer, on either side."""
        return self.sender.idle and self.receiver.idle

    def quarantined(self) -> int:
        return self.sender.staging.quarantined + self.receiver.staging.quarantined


@asynccontextmanager
async def linked(
    config: TransferConfig = QUICK,
    sender_opener=open_channel,
    receiver_opener=open_channel,
    receiver_config: TransferConfig | None = None,
    blocks: int = 64,
    *,
    borrowed: bool = False,
) -> AsyncIterator[Pair]:
    source, target = (
        make_cache(blocks, seed=1, borrowed=borrowed),
        make_cache(blocks, borrowed=borrowed),
    )
    async with (
        sending("p0", config, source, sender_opener) as side,
        receiving("d0", receiver_config or config, target, receiver_opener) as (receiver, _),
    ):
        yield Pair(source, target, side.sender, receiver, side.peer, side.server)


async def eventually(condition, timeout_s: float = 30.0) -> None:
    """Wait until it holds; fails if it never does."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


def wait_until(condition, timeout_s: float = 30.0) -> bool:
    """Wait on this thread until it holds; False if it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.002)
    return met


async def loop_turns(count: int) -> None:
    """Let the event loop run that many turns."""
    for _ in range(count):
        await asyncio.sleep(0)


def end_links(sender: KvSender) -> None:
    """Break all links of a sender, as a failure of its channel would."""
    for link in list(sender._links._links.values()):
        link.end("broken by the test")


class Admission:
    """An admission that waits: `asked` is set when it begins, and `allow` ends it."""

    def __init__(self):
        self.asked, self.allow = asyncio.Event(), asyncio.Event()

    async def __call__(self):
        self.asked.set()
        await self.allow.wait()


def with_transport(transport: str) -> TransferConfig:
    return replace(QUICK, transport=transport)


def apart(transport: str) -> TransferConfig:
    """Between processes, of which a busy host may let one stand still without its death."""
    return replace(with_transport(transport), silence_s=4.0)


def over(transport: str, config: TransferConfig = QUICK) -> dict[str, Any]:
    """What `linked` needs for one of TRANSPORTS."""
    borrowed = transport == "borrowed"
    name = "shared_memory" if borrowed else transport
    return {"config": replace(config, transport=name), "borrowed": borrowed}
