"""Peers that break the protocol: played by hand, message by message, over loopback."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import grpc
import pytest
import torch

from engine.errors import TransferFailed
from kv_transfer.errors import LinkBroken, LinkRefused, Withdrawn
from kv_transfer.frames.checksum import SEAL_BYTES, seal
from kv_transfer.frames.frame_plan import Extent, FramePart
from kv_transfer.links import proto_convert as wire
from kv_transfer.links.link import FRAMES_PER_BUFFER
from kv_transfer.receiver import Peer
from kv_transfer.sender import OutgoingKv
from kv_transfer.transports.loopback import LoopbackChannel
from kv_transfer.transports.selection import PROCESS
from kv_transfer.transports.transport import RECEIVER_RANK, SENDER_RANK, ChannelSpec
from protos import kv_transfer_pb2 as pb
from protos import kv_transfer_pb2_grpc
from tests.kv_transfer.rig import (
    HOST,
    LAYOUT,
    QUICK,
    eventually,
    make_cache,
    receiving,
    sending,
    untouched,
)

CONFIG = replace(QUICK, transport="loopback", io_timeout_s=0.5)
BLOCK = 3328
CREDIT = FRAMES_PER_BUFFER * CONFIG.staging_buffers


def channel_spec(prefix, rank):
    return ChannelSpec("loopback", HOST, 0, prefix, rank, HOST, torch.device("cpu"), 2.0)


class RogueSender(kv_transfer_pb2_grpc.KvTransferServicer):
    """Welcomes and offers as it should, then does what `play` says."""

    protocol = wire.PROTOCOL

    def __init__(self, play):
        self._play = play
        self.messages = asyncio.Queue()

    async def Link(self, _, context):  # noqa: N802
        hello = (await context.read()).hello
        assert hello.receiver == "d0"
        prefix = uuid.uuid4().hex
        welcome = pb.Welcome(sender="rogue", store_prefix=prefix, transport="loopback")
        welcome.frame_bytes = hello.frame_bytes
        welcome.protocol = self.protocol
        await context.write(wire.to_receiver(welcome=welcome))
        channel = await asyncio.to_thread(LoopbackChannel, channel_spec(prefix, SENDER_RANK))
        reader = asyncio.create_task(self._read(context))

        async def send(**message):
            await context.write(wire.to_receiver(**message))

        try:
            await send(joined=pb.Joined())
            await send(offer=pb.Offer(transfer="t", tokens=13, blocks=2, first_token=5))
            await self._play(self, channel, send)
            await beat(partial(send, heartbeat=pb.Heartbeat()))
        finally:
            reader.cancel()
            channel.close()

    async def _read(self, context):
        while (message := await context.read()) is not grpc.aio.EOF:
            for kind, body in map(wire.content, wire.split(message)):
                if kind not in ("heartbeat", "joined", "credit"):
                    self.messages.put_nowait((kind, body))


@asynccontextmanager
async def facing(play):
    """A receiver that faces the rogue: (start a transfer, receiver, its cache)."""
    server = grpc.aio.server()
    port = server.add_insecure_port(f"{HOST}:0")
    kv_transfer_pb2_grpc.add_KvTransferServicer_to_server(RogueSender(play), server)
    await server.start()
    async with receiving(config=CONFIG) as (receiver, cache):

        async def admit(offered):
            return [3, 4], 17

        async def receive():
            return await receiver.receive(Peer("rogue", f"{HOST}:{port}"), "t", admit, 10)

        try:
            yield receive, receiver, cache
        finally:
            await receiver.close()
            await server.stop(0)


WHOLE = FramePart(0, 4, 0, 2, 2 * BLOCK)
ALL = wire.extent_to_proto("t", Extent(0, 4, 0, 2), 8192)


DATA = torch.ones(2 * BLOCK + SEAL_BYTES, dtype=torch.uint8)
seal(DATA)


def frame(part=WHOLE, generation=17, sequence=0):
    return pb.Frames(frames=[wire.frame_to_proto(sequence, "t", generation, part)])


@pytest.mark.parametrize(
    ("announced", "problem"),
    [
        (frame(replace(WHOLE, bytes=2 * BLOCK - 1)), "by the layout"),
        (frame(replace(WHOLE, bytes=1 << 40, block_stop=1 << 30)), "by the layout"),
        (frame(replace(WHOLE, layer_stop=5)), "no layers 0 to 5"),
        (frame(FramePart(0, 4, 0, 1, BLOCK)), "not the next"),
        (frame(FramePart(0, 4, 2, 0, 0)), "by the layout"),
        (frame(sequence=1), "0 expected"),
    ],
)
async def test_a_frame_of_the_wrong_size_breaks_the_link_before_anything_is_received(
    announced, problem
):
    async def play(rogue, channel, send):
        assert (await rogue.messages.get())[0] == "pull"
        await send(extent=ALL)
        await send(frames=announced)

    async with facing(play) as (receive, _, cache):
        with pytest.raises(LinkBroken, match=problem):
            await receive()
        assert untouched(cache)


@pytest.mark.parametrize(
    "extent", [Extent(0, 4, 1, 2), Extent(0, 5, 0, 2), Extent(0, 4, 0, 3), Extent(0, 0, 0, 2)]
)
async def test_an_extent_out_of_order_breaks_the_link(extent):
    async def play(rogue, channel, send):
        await rogue.messages.get()
        await send(extent=wire.extent_to_proto("t", extent, 8192))

    async with facing(play) as (receive, _, cache):
        with pytest.raises(LinkBroken, match="out of order"):
            await receive()
        assert untouched(cache)


@pytest.mark.parametrize("frame_bytes", [0, 1023, 8193, 1 << 60])
async def test_an_extent_in_frames_that_cannot_be_breaks_the_link(frame_bytes):
    """They hold no block of the largest layer, or fit no staging buffer."""

    async def play(rogue, channel, send):
        await rogue.messages.get()
        await send(extent=wire.extent_to_proto("t", Extent(0, 4, 0, 2), frame_bytes))

    async with facing(play) as (receive, _, cache):
        with pytest.raises(LinkBroken, match="frames of"):
            await receive()
        assert untouched(cache)


async def test_a_transfer_that_is_done_though_a_frame_came_void_fails():
    async def play(rogue, channel, send):
        await rogue.messages.get()
        await send(extent=ALL)
        await send(frames=frame())
        nothing = DATA.clone()
        seal(nothing, void=True)
        await asyncio.to_thread(channel.send(nothing), 1.0)
        await send(done=pb.Done(transfer="t", frames=1))

    async with facing(play) as (receive, receiver, cache):
        with pytest.raises(Withdrawn, match="came void"):
            await receive()
        assert untouched(cache)
        assert receiver.links_open == 1


async def test_done_before_all_is_announced_fails_the_transfer():
    async def play(rogue, channel, send):
        await rogue.messages.get()
        await send(done=pb.Done(transfer="t", frames=0))

    async with facing(play) as (receive, receiver, cache):
        with pytest.raises(TransferFailed, match="0 of 0 frames came"):
            await receive()
        assert untouched(cache)
        assert receiver.links_open == 1


async def test_a_frame_of_another_generation_goes_to_scratch():
    async def play(rogue, channel, send):
        await rogue.messages.get()
        await send(extent=ALL)
        await send(frames=frame(generation=16))
        await asyncio.to_thread(channel.send(DATA), 1.0)
        await send(done=pb.Done(transfer="t", frames=1))

    async with facing(play) as (receive, receiver, cache):
        with pytest.raises(TransferFailed, match="0 of 1 frames came"):
            await receive()
        await eventually(lambda: receiver.counters.frames_discarded == 1)
        assert untouched(cache)
        assert receiver.links_open == 1


async def test_a_late_frame_of_a_transfer_given_up_goes_to_scratch():
    given_up = asyncio.Event()

    async def play(rogue, channel, send):
        await rogue.messages.get()
        await send(extent=ALL)
        await send(frames=frame())
        given_up.set()
        assert (await rogue.messages.get())[0] == "cancel"
        await asyncio.to_thread(channel.send(DATA), 1.0)

    async with facing(play) as (receive, receiver, cache):
        task = asyncio.create_task(receive())
        await given_up.wait()
        task.cancel()
        await asyncio.wait({task})
        await eventually(lambda: receiver.counters.frames_discarded == 1)
        assert untouched(cache)
        assert receiver.links_open == 1


async def test_a_sender_that_says_nothing_more_counts_as_dead():
    async def play(rogue, channel, send):
        await asyncio.Event().wait()

    async with facing(play) as (receive, _, _cache):
        started = asyncio.get_running_loop().time()
        with pytest.raises(LinkBroken, match="silent"):
            await receive()
        assert 0.8 < asyncio.get_running_loop().time() - started < 2.5


async def test_a_frame_that_never_comes_breaks_the_link():
    async def play(rogue, channel, send):
        await rogue.messages.get()
        await send(extent=ALL)
        await send(frames=frame())

    async with facing(play) as (receive, _, cache):
        with pytest.raises(LinkBroken, match="took longer"):
            await receive()
        assert untouched(cache)


async def test_frames_beyond_the_credit_break_the_link():
    async def play(rogue, channel, send):
        await rogue.messages.get()
        for sequence in range(CREDIT + 1):
            await send(frames=frame(generation=16, sequence=sequence))

    async with facing(play) as (receive, _, cache):
        with pytest.raises(LinkBroken, match=f"frame {CREDIT} announced, credit for {CREDIT}"):
            await receive()
        assert untouched(cache)


async def test_a_receiver_without_credit_is_sent_nothing_and_loses_its_link():
    async with sending(config=CONFIG, cache=make_cache(seed=1)) as side:
        kv = OutgoingKv("t", "d0", (1, 2), 13, 5)
        offer = asyncio.create_task(side.sender.hand_over(kv, 10))
        async with rogue_receiver(side.peer.address) as (call, next_message):
            await next_message("offer")
            await call.write(wire.to_sender(pull=pb.Pull(transfer="t", generation=1, blocks=2)))
            assert (await next_message("extent")).block_stop == 2
            heartbeat = wire.to_sender(heartbeat=pb.Heartbeat())
            beating = asyncio.create_task(beat(partial(call.write, heartbeat)))
            with pytest.raises(LinkBroken, match="credit for frame 0 took longer"):
                await offer
            beating.cancel()


async def beat(send_heartbeat):
    """Be alive, and nothing more."""
    while True:
        await send_heartbeat()
        await asyncio.sleep(0.1)


@asynccontextmanager
async def rogue_receiver(address, generation=1, protocol=wire.PROTOCOL):
    """A joined link, played by hand: (call, next message of a kind)."""
    async with grpc.aio.insecure_channel(address) as grpc_channel:
        call = kv_transfer_pb2_grpc.KvTransferStub(grpc_channel).Link()
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
                    message = await call.read()
                    assert message is not grpc.aio.EOF, f"the link ended before {wanted}"
                    received.extend(wire.split(message))
                kind, body = wire.content(received.pop(0))
                if kind == wanted:
                    return body

        welcome = await next_message("welcome")
        spec = channel_spec(welcome.store_prefix, RECEIVER_RANK)
        channel = await asyncio.to_thread(LoopbackChannel, spec)
        await call.write(wire.to_sender(joined=pb.Joined()))
        try:
            yield call, next_message
        finally:
            channel.close()
            call.cancel()


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"credit": pb.Credit(frames=0)}, "credit for 0 frames after 0"),
        ({"committed": pb.Committed(transfer="t")}, "before it was sent"),
        ({"pull": pb.Pull(transfer="t", blocks=2, in_place=True)}, "cannot be pulled in place"),
        ({"hello": pb.Hello()}, "unexpected"),
    ],
)
async def test_a_receiver_that_breaks_the_protocol_loses_its_link(message, problem):
    async with sending(config=CONFIG, cache=make_cache(seed=1)) as side:
        offer = asyncio.create_task(side.sender.hand_over(OutgoingKv("t", "d0", (1, 2), 13, 5), 10))
        async with rogue_receiver(side.peer.address) as (call, next_message):
            await next_message("offer")
            await call.write(wire.to_sender(**message))
            with pytest.raises(LinkBroken, match=problem):
                await offer


async def test_a_sender_of_another_protocol_is_not_linked_with(monkeypatch):
    async def play(rogue, channel, send):
        raise AssertionError("never joined")

    monkeypatch.setattr(RogueSender, "protocol", 1)
    async with facing(play) as (receive, _, _cache):
        with pytest.raises(LinkRefused, match="protocol: 5 here, 1 there"):
            await receive()


async def test_a_receiver_of_another_protocol_is_refused():
    async with sending(config=CONFIG) as side:
        with pytest.raises(AssertionError, match="ended before welcome"):
            async with rogue_receiver(side.peer.address, protocol=1):
                pass
        assert side.sender.counters.links_refused == 1
        assert side.sender.links_open == 0


async def test_a_newer_link_replaces_the_older_and_an_older_is_refused():
    async with (
        sending(config=CONFIG, cache=make_cache(seed=1)) as side,
        rogue_receiver(side.peer.address, generation=5) as (first, _),
    ):
        await eventually(lambda: side.sender.links_open == 1)
        async with rogue_receiver(side.peer.address, generation=6):
            await eventually(lambda: side.sender.counters.links_opened == 2)
            with pytest.raises(grpc.aio.AioRpcError, match="newer link"):
                while await first.read() is not grpc.aio.EOF:
                    pass
            with pytest.raises(AssertionError, match="ended before welcome"):
                async with rogue_receiver(side.peer.address, generation=4):
                    pass
            assert side.sender.links_open == 1
