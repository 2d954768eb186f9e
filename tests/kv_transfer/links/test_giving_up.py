"""Giving up a transfer: withdrawals, deadlines, and cancels at any step."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import DeadlineExceeded, TransferFailed
from kv_transfer.errors import Withdrawn
from tests.kv_transfer.rig import Admission, eventually, linked, loop_turns, same, untouched


class TestWithdraw:
    async def test_a_withdrawal_before_the_link_opens_reaches_the_receiver(self):
        async with linked() as pair:
            await pair.sender.withdraw("t", "d0", "the first token ended it")
            with pytest.raises(Withdrawn, match="the first token ended it"):
                await pair.take("t", [1])

    async def test_a_withdrawal_ends_the_wait_for_the_offer(self):
        async with linked() as pair:
            waiting = pair.take("t", [1])
            await eventually(lambda: pair.sender.links_open == 1)
            await pair.sender.withdraw("t", "d0", "prefill failed")
            with pytest.raises(Withdrawn, match="prefill failed"):
                await waiting

    async def test_a_withdrawal_before_receive_is_remembered(self):
        async with linked() as pair:
            await pair.move("first", [1], [1])
            await pair.sender.withdraw("t", "d0", "prefill failed")
            await pair.move("second", [2], [2])  # so that the receiver has read the withdrawal
            with pytest.raises(Withdrawn, match="prefill failed"):
                await pair.take("t", [1])

    async def test_a_withdrawal_ends_the_wait_for_blocks(self):
        admission = Admission()
        async with linked() as pair:
            offer = pair.offer("t", [1])
            waiting = pair.take("t", [1], before_admit=admission)
            await admission.asked.wait()
            await pair.sender.withdraw("t", "d0", "enough")
            with pytest.raises(Withdrawn, match="enough"):
                await waiting
            with pytest.raises(Withdrawn, match="enough"):
                await offer
            await pair.move("next", [2], [3])


class TestDeadlines:
    async def test_the_lease_ends_before_the_pull(self):
        async with linked() as pair:
            with pytest.raises(DeadlineExceeded, match="lease"):
                await pair.offer("t", [1], timeout_s=0.1)
            with pytest.raises(Withdrawn, match="lease"):
                await pair.take("t", [1])

    async def test_the_lease_ends_during_admission(self):
        async with linked() as pair:
            offer = pair.offer("t", [1], timeout_s=0.4)
            waiting = pair.take("t", [1], before_admit=asyncio.Event().wait)
            with pytest.raises(DeadlineExceeded, match="lease"):
                await offer
            with pytest.raises(Withdrawn, match="lease"):
                await waiting

    async def test_the_receiver_stops_waiting_for_an_offer(self):
        async with linked() as pair:
            await pair.move("warm", [0], [0])  # a link takes its time to open
            with pytest.raises(DeadlineExceeded, match="longer than"):
                await pair.take("t", [1], timeout_s=0.3)
            await eventually(pair.idle)
            with pytest.raises(TransferFailed, match="the receiver cancelled"):
                await pair.offer("t", [1])

    async def test_the_receiver_stops_waiting_for_blocks(self):
        async with linked() as pair:
            await pair.move("warm", [0], [0])
            offer = pair.offer("t", [1])
            with pytest.raises(DeadlineExceeded):
                await pair.take("t", [1], timeout_s=0.3, before_admit=asyncio.Event().wait)
            with pytest.raises(TransferFailed, match="the receiver cancelled"):
                await offer


@pytest.mark.parametrize("side", ["sender", "receiver"])
@pytest.mark.parametrize("turns", [1, 2, 5, 10, 20, 30, 40, 60, 80, 120])
async def test_cancel_at_any_step(side, turns):
    """Cancelled after that many turns of the event loop, a transfer leaves nothing behind."""
    async with linked() as pair:
        if turns % 4:
            await pair.move("warm", [0], [0])
        blocks, written = list(range(1, 33)), list(range(32, 64))
        offer, taking = pair.offer("t", blocks), pair.take("t", written)
        await loop_turns(turns)
        (offer if side == "sender" else taking).cancel()
        results = await asyncio.gather(offer, taking, return_exceptions=True)
        allowed = (asyncio.CancelledError, TransferFailed, int)
        assert isinstance(results[0], allowed), results
        if not isinstance(results[1], BaseException):
            assert same(pair.source, blocks, pair.target, written)
        for layer in pair.target.layers:
            layer.zero_()
        await pair.move("next", [1], [5])
        await eventually(pair.idle)
        assert untouched(pair.target, but=[5])
        assert pair.receiver.counters.links_failed == pair.sender.counters.links_failed == 0
