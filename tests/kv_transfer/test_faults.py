"""What goes wrong on a link: the transfer fails soon, nothing wrong is written, the next works."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial

import pytest

from engine.errors import TransferFailed
from kv_transfer.errors import ChannelBroken, ChecksumMismatch, LinkBroken
from kv_transfer.transports.fault_injection import Fault, FaultPlan, FaultyOpener
from kv_transfer.transports.selection import open_channel
from tests.kv_transfer.rig import QUICK, eventually, linked, same, untouched, wait_until

# For channels that hang: nothing but this deadline ends them. It ends a good channel that stands
# still for as long, too.
FAST = replace(QUICK, io_timeout_s=0.5)
# Less than the deadline of a transfer, which ends it in any case.
SOON_S = 9.0


def faulty(*plans):
    return FaultyOpener(open_channel, plans)


async def fails(pair, transfer, blocks, written):
    """Both sides of that transfer fail as they may; returns the receiver's error."""
    results = await asyncio.gather(
        pair.offer(transfer, blocks), pair.take(transfer, written), return_exceptions=True
    )
    assert all(isinstance(result, TransferFailed) for result in results), results
    assert all(result.retryable for result in results)
    return results[1]


@pytest.mark.parametrize("transport", ["gloo", "loopback", "shared_memory"])
@pytest.mark.parametrize("side", ["sender", "receiver"])
async def test_a_corrupted_frame_is_never_written_and_the_link_lives(transport, side):
    opener = faulty(FaultPlan(Fault.CORRUPT))
    config = replace(QUICK, transport=transport)
    async with linked(config, **{f"{side}_opener": opener}) as pair:
        error = await fails(pair, "bad", [1, 2], [3, 4])
        assert isinstance(error, ChecksumMismatch)
        assert untouched(pair.target)
        await pair.move("good", [1, 2], [3, 4])
        assert pair.receiver.counters.checksum_errors == 1
        assert pair.receiver.counters.links_opened == 1
        assert pair.receiver.transfers_failed == pair.sender.transfers_failed == 1


async def test_a_corrupted_frame_in_the_middle_leaves_other_transfers_alone():
    async with linked(receiver_opener=faulty(FaultPlan(Fault.CORRUPT, call=7))) as pair:

        async def attempt(index):
            blocks = list(range(16 * index, 16 * index + 16))
            results = await asyncio.gather(
                pair.offer(f"t{index}", blocks),
                pair.take(f"t{index}", blocks),
                return_exceptions=True,
            )
            ok = not any(isinstance(result, BaseException) for result in results)
            assert not ok or same(pair.source, blocks, pair.target, blocks)
            return ok

        outcomes = await asyncio.gather(*(attempt(index) for index in range(4)))
        assert sorted(outcomes) == [False, True, True, True]
        assert pair.receiver.counters.links_opened == 1
        await eventually(pair.idle)


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.DIE_HALF])
@pytest.mark.parametrize("call", [0, 3])
@pytest.mark.parametrize("side", ["sender", "receiver"])
async def test_a_broken_channel_is_thrown_away_and_a_new_one_made(fault, call, side):
    opener = faulty(FaultPlan(fault, call))
    async with linked(QUICK, **{f"{side}_opener": opener}) as pair:
        error = await fails(pair, "bad", list(range(20)), list(range(20, 40)))
        assert isinstance(error, LinkBroken)
        assert fault.value in error.message  # and no deadline
        await pair.move("good", list(range(20)), list(range(20, 40)))
        assert pair.receiver.counters.links_opened == 2
        assert untouched(pair.target, but=list(range(20, 40)))
        await eventually(lambda: pair.quarantined() == 0)


@pytest.mark.parametrize("side", ["sender", "receiver"])
async def test_a_channel_that_never_completes(side):
    """The transfer fails in time, the next one works, and the staging waits for its thread."""
    opener = faulty(FaultPlan(Fault.HANG, call=1))
    async with linked(FAST, **{f"{side}_opener": opener}) as pair:
        started = time.monotonic()
        await fails(pair, "bad", list(range(20)), list(range(20, 40)))
        assert time.monotonic() - started < SOON_S
        await pair.move("good", [1, 2], [50, 51])
        staging = getattr(pair, side).staging
        assert 1 <= staging.quarantined <= FAST.staging_buffers
        opener.release()
        await eventually(lambda: pair.quarantined() == 0)
        assert staging.taken == FAST.staging_buffers
        await pair.move("again", [1, 2], [52, 53])


async def test_a_slow_channel_only_takes_longer():
    async with linked(sender_opener=faulty(FaultPlan(Fault.SLOW, seconds=0.05))) as pair:
        await pair.move("slow", list(range(10)), list(range(10)))


async def test_everything_on_a_broken_link_fails_at_once():
    async with linked(QUICK, receiver_opener=faulty(FaultPlan(Fault.FAIL, call=2))) as pair:
        never = asyncio.Event()
        waiting_offer = pair.take("a", [1])
        admitting = pair.take("b", [2], before_admit=never.wait)
        parked = pair.offer("b", [2])
        await eventually(lambda: pair.sender.links_open == 1)
        await fails(pair, "bad", list(range(20)), list(range(20, 40)))
        for task in (waiting_offer, admitting, parked):
            with pytest.raises(LinkBroken):
                await asyncio.wait_for(task, SOON_S)
        await pair.move("good", [5], [6])


async def test_staging_is_bounded_and_the_error_names_the_quarantined_buffers():
    """With one link allowed there are four buffers: two to work with, two that may be stuck."""
    opener = faulty(*[FaultPlan(Fault.HANG)] * 3)
    config = replace(FAST, max_links=1, staging_buffers=2)
    async with linked(config, receiver_opener=opener) as pair:
        for index in range(3):
            await fails(pair, f"bad{index}", [1], [2])
        with pytest.raises(LinkBroken, match="staging buffers in use, 3 of them quarantined"):
            await pair.take("none left", [2])
        opener.release()
        await eventually(lambda: pair.quarantined() == 0)
        await pair.move("good", [1], [2])


async def test_both_ends_hanging_are_given_up_by_their_links():
    """No timeout of a transport helps here: the links' own deadlines do."""
    sender_opener, receiver_opener = faulty(FaultPlan(Fault.HANG)), faulty(FaultPlan(Fault.HANG))
    config = replace(FAST, transport="loopback")
    async with linked(config, sender_opener, receiver_opener) as pair:
        started = time.monotonic()
        await fails(pair, "bad", [1], [2])
        assert 0.9 < time.monotonic() - started < SOON_S
        await pair.move("good", [1], [2])
        for opener in (sender_opener, receiver_opener):
            opener.release()
        await eventually(lambda: pair.quarantined() == 0)


class FailsOnce:
    """A channel whose first send fails when the next message is queued; counts the calls."""

    def __init__(self, inner, next_is_queued):
        self.inner, self.next_is_queued = inner, next_is_queued
        self.staging_device, self.ahead = inner.staging_device, inner.ahead
        self.calls = 0
        self.abort, self.close, self.receive = inner.abort, inner.close, inner.receive

    def send(self, buffer):
        self.calls += 1
        if self.calls > 1:
            return self.inner.send(buffer)
        assert wait_until(self.next_is_queued)
        raise ChannelBroken("the first call fails")


async def test_no_call_follows_a_failed_one_on_the_same_channel():
    """Else the second frame would arrive where the first is expected."""
    channels = []

    def opener(spec):
        channels.append(FailsOnce(open_channel(spec), lambda: counters().frames_announced > 1))
        return channels[0] if len(channels) == 1 else channels[-1].inner

    async with linked(QUICK, sender_opener=opener) as pair:
        counters = partial(getattr, pair.sender, "counters")
        await fails(pair, "bad", list(range(20)), list(range(20, 40)))
        assert channels[0].calls == 1
        await pair.move("good", [1], [2])


async def test_two_corrupted_frames_in_a_row_cost_the_link():
    class Garbles:
        def __init__(self, inner):
            self.inner = inner
            self.staging_device, self.ahead = inner.staging_device, inner.ahead
            self.abort, self.close, self.send = inner.abort, inner.close, inner.send

        def receive(self, staging, size):
            receipt = self.inner.receive(staging, size)

            def wait_and_garble(timeout_s):
                arrived = receipt(timeout_s)
                arrived.data[0] ^= 1
                return arrived

            return wait_and_garble

    openers = iter([lambda spec: Garbles(open_channel(spec)), open_channel])
    async with linked(QUICK, receiver_opener=lambda spec: next(openers)(spec)) as pair:
        assert isinstance(await fails(pair, "one", [1], [2]), ChecksumMismatch)
        await fails(pair, "two", [1], [2])
        await eventually(lambda: pair.receiver.links_open == pair.sender.links_open == 0)
        await pair.move("good", [1], [2])
        assert untouched(pair.target, but=[2])
