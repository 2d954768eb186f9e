"""One link from end to end, in one process: every byte, in every order."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace

import pytest

from engine.errors import Internal, Overloaded, TransferFailed
from engine.kv.layout import LayerShape
from kv_transfer.errors import LinkBroken, LinkRefused
from kv_transfer.links.link import GRACE_S
from kv_transfer.receiver import KvReceiver, Peer
from kv_transfer.sender import OutgoingKv
from kv_transfer.transports.loopback import LoopbackChannel
from kv_transfer.transports.selection import open_channel
from tests.kv_transfer.rig import (
    CONNECTOR,
    HOST,
    LAYOUT,
    QUICK,
    TRANSPORTS,
    Admission,
    end_links,
    eventually,
    linked,
    loop_turns,
    make_cache,
    over,
    receiving,
    same,
    sending,
    untouched,
    with_transport,
)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_exact_bytes_for_odd_block_lists(transport):
    async with linked(**over(transport)) as pair:
        lists = [[63], [5, 2, 40], [0, 63, 31, 7, 8, 9, 1], list(range(30, 60))]
        for index, blocks in enumerate(lists):
            written = random.Random(index).sample(range(64), len(blocks))
            await pair.move(f"t{index}", blocks, written)
        assert pair.receiver.links_open == pair.sender.links_open == 1
        assert pair.sender.bytes_moved == pair.receiver.bytes_moved == 41 * 3328
        assert pair.sender.transfers_failed == pair.receiver.transfers_failed == 0
        await eventually(pair.idle)


async def test_a_committed_transfer_is_not_offered_again_on_the_next_link():
    async with linked() as pair:
        handing = pair.sender.begin(OutgoingKv("t", "d0", (1, 2), 13, 5))
        await pair.take("t", [3, 4])
        await handing.committed(5.0)
        end_links(pair.sender)
        await eventually(lambda: not pair.receiver.links_open)
        await pair.move("next", [5], [6])
        await handing.close("done")
        await eventually(pair.idle)


async def test_only_the_given_blocks_are_written():
    async with linked() as pair:
        await pair.move("t", [1, 2, 3], [10, 30, 20])
        assert untouched(pair.target, but=[10, 20, 30])


async def test_32_transfers_at_once_on_one_link():
    async with linked(blocks=512) as pair:
        blocks = list(range(512))
        random.Random(7).shuffle(blocks)
        written = list(range(512))
        random.Random(8).shuffle(written)
        parts = [slice(16 * i, 16 * i + 1 + i % 16) for i in range(32)]
        await asyncio.gather(
            *(pair.move(f"t{i}", blocks[part], written[part]) for i, part in enumerate(parts))
        )
        assert pair.sender.counters.links_opened == 1
        await eventually(pair.idle)


async def test_the_offer_may_come_before_the_link_or_after():
    async with linked() as pair:
        early = pair.offer("early", [1, 2])
        await loop_turns(10)
        assert pair.sender.links_open == 0
        received = await pair.take("early", [3, 4])
        assert await early == received.bytes

        late = pair.take("late", [5, 6])
        await pair.move("between", [1], [1])
        assert not late.done()
        assert await pair.offer("late", [7, 8]) == (await late).bytes
        assert same(pair.source, [7, 8], pair.target, [5, 6])


async def test_admission_waits_without_holding_up_others():
    admission = Admission()
    async with linked() as pair:
        parked = pair.offer("parked", [1])
        waiting = pair.take("parked", [1], before_admit=admission)
        for index in range(3):
            await pair.move(f"t{index}", [2, 3], [4, 5])
        assert not waiting.done()
        admission.allow.set()
        received = await waiting
        assert await parked == received.bytes
        assert received.admission_s > 0


async def test_layout_mismatch_is_refused_by_name():
    other = replace(LAYOUT, layers=(*LAYOUT.layers[:3], LayerShape(4, 8)))
    async with (
        sending() as side,
        receiving(cache=make_cache(layout=other)) as (receiver, _),
    ):

        async def admit(offered):
            raise AssertionError("never offered")

        with pytest.raises(
            LinkRefused, match=r"layer 3: .*kv_heads=2.* here, .*kv_heads=4.* there"
        ):
            await receiver.receive(side.peer, "t", admit, 5)
        assert side.sender.counters.links_refused == 1
        assert receiver.links_open == side.sender.links_open == 0


async def test_a_refused_link_fails_the_offers_to_that_receiver():
    async with linked(receiver_config=with_transport("loopback")) as pair:
        offer = pair.offer("t", [1])
        await loop_turns(1)
        with pytest.raises(LinkRefused, match="transport: gloo here, loopback there"):
            await pair.take("t", [1])
        with pytest.raises(LinkRefused, match="transport"):
            await offer


async def test_auto_uses_loopback_inside_one_process():
    opened = []

    def opener(spec):
        channel = open_channel(spec)
        opened.append((spec.transport, type(channel)))
        return channel

    async with linked(with_transport("auto"), opener, opener) as pair:
        await pair.move("t", [1, 2, 3], [4, 5, 6])
        assert pair.sender.counters.frames_announced > 0
    assert opened == [("loopback", LoopbackChannel)] * 2


async def test_the_smaller_of_two_frame_sizes_is_used():
    async with linked(receiver_config=replace(QUICK, frame_bytes=2048)) as pair:
        await pair.move("t", list(range(20)), list(range(20, 40)))


async def test_too_many_links_are_refused():
    config = replace(QUICK, max_links=1)
    async with (
        sending(config=config) as side,
        receiving("d0") as (first, _),
        receiving("d1") as (second, _),
    ):
        waiting = asyncio.create_task(first.receive(side.peer, "a", None, 5))
        await eventually(lambda: first.links_open == 1)
        with pytest.raises(LinkRefused, match="1 links are open"):
            await second.receive(side.peer, "b", None, 5)
        waiting.cancel()


async def test_an_idle_link_makes_way_for_another_and_a_busy_one_does_not():
    config = replace(QUICK, max_links=1)
    async with (
        sending("p0") as first,
        sending("p1") as second,
        receiving(config=config) as (receiver, _),
    ):
        waiting = asyncio.create_task(receiver.receive(first.peer, "a", None, 5))
        await eventually(lambda: receiver.links_open == 1)
        with pytest.raises(Overloaded):
            await receiver.receive(second.peer, "b", None, 5)
        waiting.cancel()
        await asyncio.wait({waiting})
        waiting = asyncio.create_task(receiver.receive(second.peer, "b", None, 5))
        await eventually(lambda: second.sender.links_open == 1)
        await eventually(lambda: first.sender.links_open == 0)
        waiting.cancel()


async def test_an_address_without_a_server_fails_the_transfer():
    receiver = KvReceiver("d0", HOST, make_cache(), QUICK, CONNECTOR)
    with pytest.raises(TransferFailed, match=r"from p9"):
        await receiver.receive(Peer("p9", f"{HOST}:1"), "t", None, 5)
    await receiver.close()


async def test_a_process_that_was_itself_asleep_does_not_blame_its_peer():
    async with linked() as pair:
        await pair.move("before", [1], [2])
        time.sleep(1.6)  # noqa: ASYNC251
        await pair.move("after", [3], [4])
        assert pair.receiver.counters.links_opened == 1


async def test_a_failing_admission_is_the_callers_own_error():
    class NoBlocks(Exception):
        pass

    async with linked() as pair:
        offer = pair.offer("t", [1])

        async def refuse():
            raise NoBlocks

        with pytest.raises(NoBlocks):
            await pair.take("t", [1], before_admit=refuse)
        with pytest.raises(TransferFailed):
            await offer
        await pair.move("next", [2], [3])


async def test_wrong_arguments_raise_internal_errors():
    async with linked() as pair:
        with pytest.raises(Internal, match="13 tokens need 2 blocks, not 1"):
            await pair.sender.hand_over(OutgoingKv("t", "d0", (1,), 13, 0), 1)
        first = pair.offer("t", [1])
        await loop_turns(1)
        with pytest.raises(Internal, match="already"):
            await pair.offer("t", [1])
        first.cancel()


async def test_a_block_that_does_not_exist_fails_only_its_transfer():
    async with linked() as pair:
        offer, taking = pair.offer("bad", [1, 9999]), pair.take("bad", [1, 2])
        with pytest.raises(Internal, match="reading KV blocks"):
            await offer
        with pytest.raises(TransferFailed, match=r"reading KV blocks|came void"):
            await taking
        offer, taking = pair.offer("bad2", [1, 2]), pair.take("bad2", [1, 9999])
        with pytest.raises(Internal, match="writing KV blocks"):
            await taking
        with pytest.raises(TransferFailed):
            await offer
        await pair.move("good", [3], [4])
        assert pair.receiver.counters.links_opened == 1


async def test_closing_either_side_fails_its_transfers_soon():
    async with linked() as pair:
        waiting = pair.take("t", [1])
        await eventually(lambda: pair.sender.links_open == 1)
        await pair.sender.close()
        with pytest.raises(LinkBroken, match="closing"):
            await waiting
    async with linked() as pair:
        admission = Admission()
        offer = pair.offer("t", [1])
        waiting = pair.take("t", [1], before_admit=admission)
        await admission.asked.wait()
        await pair.receiver.close()
        with pytest.raises(TransferFailed):
            await offer
        with pytest.raises(LinkBroken, match="closing"):
            await waiting


async def test_a_link_that_was_out_of_credit_for_a_moment_stays_up():
    async with linked(config=replace(QUICK, io_timeout_s=0.05)) as pair:
        await pair.move("a", [1, 2], [3, 4])
        link = pair.sender._links.up("d0")
        # As where more credit comes in the turn in which the last was used.
        link._out_of_credit.set()
        link._out_of_credit.clear()
        await asyncio.sleep(0.05 + 2 * GRACE_S)  # longer than the link would wait for credit
        assert pair.sender.links_open == 1
        await pair.move("b", [5, 6], [7, 8])
