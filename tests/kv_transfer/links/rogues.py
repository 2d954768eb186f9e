"""Peers that break the protocol: played by hand, message by message, over loopback."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import torch
from torch.distributed import HashStore

from engine.errors import Unavailable
from kv_transfer.links import proto_convert as wire
from kv_transfer.links.link_stream import MOST_LINK_BYTES, LinkStream
from kv_transfer.receiver import Peer
from kv_transfer.transports.loopback import LoopbackChannel
from kv_transfer.transports.selection import PROCESS
from kv_transfer.transports.transport import RECEIVER_RANK, SENDER_RANK, ChannelSpec
from protos import kv_transfer_pb2 as pb
from protos.wire.streams import FrameStream
from tests.kv_transfer.rig import (
    CONNECTOR,
    HOST,
    LAYOUT,
    QUICK,
    receiving,
    serving_links,
)

CONFIG = replace(QUICK, transport="loopback", io_timeout_s=0.5)


def channel_spec(prefix, rank):
    return ChannelSpec("loopback", prefix, rank, HOST, torch.device("cpu"), 30.0, HashStore())


async def beat(send_heartbeat):
    """Be alive, and nothing more."""
    while True:
        await send_heartbeat()
        await asyncio.sleep(0.1)


class RogueSender:
    """Welcomes and offers as it should, then does what `play` says."""

    protocol = wire.PROTOCOL

    def __init__(self, play):
        self._play = play
        self.messages = asyncio.Queue()

    async def serve(self, stream):
        messages = LinkStream(stream, pb.ReceiverMessage, pb.SenderMessage)
        hello = (await messages.read()).hello
        assert hello.receiver == "d0"
        prefix = uuid.uuid4().hex
        welcome = pb.Welcome(sender="rogue", channel=prefix, transport="loopback")
        welcome.frame_bytes = hello.frame_bytes
        welcome.protocol = self.protocol
        await messages.write(wire.to_receiver(welcome=welcome))
        channel = await asyncio.to_thread(LoopbackChannel, channel_spec(prefix, SENDER_RANK))
        reader = asyncio.create_task(self._read(messages))

        async def send(**message):
            await messages.write(wire.to_receiver(**message))

        try:
            await send(joined=pb.Joined())
            await send(offer=pb.Offer(transfer="t", tokens=13, blocks=2, first_token=5))
            await self._play(self, channel, send)
            await beat(partial(send, heartbeat=pb.Heartbeat()))
        finally:
            reader.cancel()
            channel.close()

    async def _read(self, messages):
        with suppress(Unavailable):
            await self._note(messages)

    async def _note(self, messages):
        while (message := await messages.read()) is not None:
            for kind, body in map(wire.content, wire.split(message)):
                if kind not in ("heartbeat", "joined", "credit"):
                    self.messages.put_nowait((kind, body))


@asynccontextmanager
async def facing(play):
    """A receiver that faces the rogue: (start a transfer, receiver, its cache)."""
    async with (
        serving_links(RogueSender(play).serve) as server,
        receiving(config=CONFIG) as (receiver, cache),
    ):

        async def admit(offered):
            return [3, 4], 17

        async def receive():
            return await receiver.receive(Peer("rogue", server.address), "t", admit, 10)

        try:
            yield receive, receiver, cache
        finally:
            await receiver.close()


@asynccontextmanager
async def rogue_receiver(address, generation=1, protocol=wire.PROTOCOL):
    """A joined link, played by hand: (call, next message of a kind)."""
    stream = FrameStream(MOST_LINK_BYTES)
    call = LinkStream(stream, pb.SenderMessage, pb.ReceiverMessage)
    await CONNECTOR.connect(address, "link", stream.wire)
    try:
        hello = pb.Hello(
            receiver="d0",
            generation=generation,
            layout=wire.layout_to_proto(LAYOUT),
            protocol=protocol,
            transport="loopback",
            device="cpu",
            process=PROCESS,
            frame_bytes=8192,
        )
        await call.write(wire.to_sender(hello=hello))

        received = []

        async def next_message(wanted):
            while True:
                if not received:
                    try:
                        message = await call.read()
                    except Unavailable as error:
                        raise AssertionError(f"the link ended before {wanted}") from error
                    assert message is not None
                    received.extend(wire.split(message))
                kind, body = wire.content(received.pop(0))
                if kind == wanted:
                    return body

        welcome = await next_message("welcome")
        spec = channel_spec(welcome.channel, RECEIVER_RANK)
        channel = await asyncio.to_thread(LoopbackChannel, spec)
        await call.write(wire.to_sender(joined=pb.Joined()))
        try:
            yield call, next_message
        finally:
            channel.close()
    finally:
        stream.close()
        await stream.ended()
