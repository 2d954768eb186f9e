"""Links that are opened before a transfer needs them, and the time that a join may take."""

import asyncio
import threading
import time
from dataclasses import replace

from kv_transfer.transports.selection import open_channel
from kv_transfer.transports.transport import RECEIVER_RANK
from tests.kv_transfer.rig import QUICK, Peer, linked


async def test_a_transfer_finds_the_link_that_was_opened_ahead():
    async with linked() as pair:
        assert await pair.receiver.open_ahead(pair.peer)
        assert pair.receiver.links_open == 1
        await pair.move("t", [1, 2, 3], [4, 5, 6])
        assert pair.receiver.counters.links_opened == 1
        assert not await pair.receiver.open_ahead(pair.peer)


async def test_no_link_is_dropped_for_one_that_nobody_needs_yet():
    async with linked(replace(QUICK, max_links=1)) as pair:
        assert await pair.receiver.open_ahead(pair.peer)
        assert not await pair.receiver.open_ahead(Peer("p1", pair.peer.address))
        assert pair.receiver.links_open == 1


async def test_a_link_that_does_not_open_is_told_and_left():
    async with linked(receiver_config=replace(QUICK, transport="loopback")) as pair:
        assert not await pair.receiver.open_ahead(pair.peer)
        assert pair.receiver.links_open == 0


async def test_a_join_may_take_longer_than_a_connection():
    """As NCCL's first one does on a node of many GPUs; the other end waits as long."""

    def slowly(spec):
        if spec.rank == RECEIVER_RANK:
            threading.Event().wait(1.0)
        return open_channel(spec)

    config = replace(QUICK, connect_timeout_s=0.6, join_timeout_s=10.0)
    async with linked(config, receiver_opener=slowly) as pair:
        assert await pair.receiver.open_ahead(pair.peer)
        await pair.move("t", [1, 2], [3, 4])


async def test_a_join_without_end_is_given_up_in_its_time():
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def never(spec):
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        return open_channel(spec)

    config = replace(QUICK, join_timeout_s=0.3)
    async with linked(config, receiver_opener=never) as pair:
        began = time.monotonic()
        assert not await pair.receiver.open_ahead(pair.peer)
        assert time.monotonic() - began < 15
        release.set()
