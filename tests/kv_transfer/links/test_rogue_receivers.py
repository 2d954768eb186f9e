"""Receivers that break the protocol, and the sender that faces them."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from kv_transfer.errors import LinkBroken
from kv_transfer.links import proto_convert as wire
from kv_transfer.sender import OutgoingKv
from protos import kv_transfer_pb2 as pb
from tests.kv_transfer.links.rogues import CONFIG, beat, rogue_receiver
from tests.kv_transfer.rig import (
    eventually,
    make_cache,
    sending,
)


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
            with pytest.raises(LinkBroken, match="newer link"):
                while await first.read() is not None:
                    pass
            with pytest.raises(AssertionError, match="ended before welcome"):
                async with rogue_receiver(side.peer.address, generation=4):
                    pass
            assert side.sender.links_open == 1
