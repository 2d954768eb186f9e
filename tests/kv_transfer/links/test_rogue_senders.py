"""Senders that break the protocol, and the receiver that faces them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch

from engine.errors import TransferFailed
from kv_transfer.errors import LinkBroken, LinkRefused, Withdrawn
from kv_transfer.frames.checksum import SEAL_BYTES, seal
from kv_transfer.frames.frame_plan import Extent, FramePart
from kv_transfer.links import proto_convert as wire
from kv_transfer.links.link import FRAMES_PER_BUFFER
from protos import kv_transfer_pb2 as pb
from tests.kv_transfer.links.rogues import CONFIG, RogueSender, facing
from tests.kv_transfer.rig import (
    eventually,
    untouched,
)

BLOCK = 3328
CREDIT = FRAMES_PER_BUFFER * CONFIG.staging_buffers


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
async def test_an_extent_with_invalid_frame_sizes_breaks_the_link(frame_bytes):
    """They hold no block of the largest layer, or fit no staging buffer."""

    async def play(rogue, channel, send):
        await rogue.messages.get()
        await send(extent=wire.extent_to_proto("t", Extent(0, 4, 0, 2), frame_bytes))

    async with facing(play) as (receive, _, cache):
        with pytest.raises(LinkBroken, match="frames of"):
            await receive()
        assert untouched(cache)


async def test_a_transfer_with_a_void_frame_fails_when_it_is_done():
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


async def test_a_frame_of_another_generation_is_discarded():
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


async def test_a_late_frame_of_a_cancelled_transfer_is_discarded():
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


async def test_a_silent_sender_counts_as_dead():
    async def play(rogue, channel, send):
        await asyncio.Event().wait()

    async with facing(play) as (receive, _, _cache):
        started = asyncio.get_running_loop().time()
        with pytest.raises(LinkBroken, match="silent"):
            await receive()
        assert 0.8 < asyncio.get_running_loop().time() - started < 9


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


async def test_a_sender_of_another_protocol_is_not_linked_with(monkeypatch):
    async def play(rogue, channel, send):
        raise AssertionError("never joined")

    monkeypatch.setattr(RogueSender, "protocol", 1)
    async with facing(play) as (receive, _, _cache):
        with pytest.raises(LinkRefused, match="protocol: 6 here, 1 there"):
            await receive()
