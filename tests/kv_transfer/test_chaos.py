"""Many transfers under random faults: no wrong byte, no late write, nothing left, no hang.

A real pool gives out the target blocks. A receiver that got KV checks it. A receiver that failed
marks its blocks, and checks later that nothing wrote over the mark. The test overwrites source
blocks as soon as their hand-over has ended.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from engine.errors import DeadlineExceeded, Internal, TandemError, TransferFailed
from engine.kv.block_pool import BlockPool
from kv_transfer.frames.borrowed_blocks import BlockBorrower
from kv_transfer.transports.fault_injection import Fault, FaultPlan, FaultyOpener
from kv_transfer.transports.selection import open_channel
from tests.kv_transfer.rig import QUICK, TRANSPORTS, Blocks, eventually, linked, loop_turns, over

TRANSFERS = 24
ATTEMPTS = 20
TIMEOUT_S = 1.5
BLOCKS = 160
CONFIG = replace(QUICK, io_timeout_s=0.25, silence_s=0.6, heartbeat_s=0.1)
MARK = -7.0


class Storm:
    """One run: every transfer has its own numbers, its own blocks and its own misfortune."""

    def __init__(self, pair, seed):
        self.pair = pair
        self.random = random.Random(seed)
        self.sources = BlockPool(pair.source.blocks)
        self.targets = BlockPool(pair.target.blocks)
        self.blocks = Blocks()
        self.done = 0

    async def one(self, index):
        """One request: tried again under a new name until it is through, or meant to end."""
        fate = self.random.choice(["none"] * 6 + ["cancel_send", "cancel_receive", "withdraw"])
        await loop_turns(self.random.randrange(500))
        for attempt in range(ATTEMPTS):
            if await self.attempt(f"t{index}.{attempt}", float(index + 1), fate):
                self.done += 1
                return
            if fate != "none":
                return
        pytest.fail(f"transfer {index} failed {ATTEMPTS} times")

    async def attempt(self, name, value, fate):
        count, turns = self.random.randint(1, 24), self.random.randrange(100)
        blocks = await self.blocks.take(self.sources, name, count)
        fill(self.pair.source, blocks, value)
        sending = asyncio.create_task(self.send(name, blocks))
        taking = asyncio.create_task(self.take(name, count, value))
        if fate != "none":
            await loop_turns(turns)
        if fate == "cancel_send":
            sending.cancel()
        elif fate == "cancel_receive":
            taking.cancel()
        elif fate == "withdraw":
            await self.pair.sender.withdraw(name, "d0", "chaos")
        results = await asyncio.gather(sending, taking, return_exceptions=True)
        allowed = (TransferFailed, DeadlineExceeded, Internal, asyncio.CancelledError, int)
        assert all(result is None or isinstance(result, allowed) for result in results), results
        return results[1] is None

    async def send(self, name, blocks):
        try:
            return await self.pair.offer(name, blocks, timeout_s=TIMEOUT_S)
        finally:
            fill(self.pair.source, blocks, MARK)
            self.blocks.free(self.sources, name)

    async def take(self, name, count, value):
        async def admit(offered):
            assert offered.blocks == count
            blocks = await self.blocks.take(self.targets, name, count)
            fill(self.pair.target, blocks, MARK)
            return blocks, self.targets.generation(blocks[0])

        try:
            await self.pair.receiver.receive(self.pair.peer, name, admit, TIMEOUT_S)
            assert has_bytes(self.pair.target, self.targets.blocks_of(name), value)
        except TandemError:
            await self.check_for_late_writes(name)
            raise
        except asyncio.CancelledError:
            await self.check_for_late_writes(name)
            raise
        finally:
            self.blocks.free(self.targets, name)

    async def check_for_late_writes(self, name):
        owned = self.targets.blocks_of(name)
        if owned:
            fill(self.pair.target, owned, MARK)
            await asyncio.sleep(0.3)
            assert has_bytes(self.pair.target, owned, MARK)


def fill(cache, blocks, value):
    for layer in cache.layers:
        layer[:, list(blocks)] = value


def has_bytes(cache, blocks, value):
    return bool(blocks) and all((layer[:, list(blocks)] == value).all() for layer in cache.layers)


def random_plans(rng):
    faults = [Fault.FAIL, Fault.DIE_HALF, Fault.CORRUPT, Fault.SLOW, Fault.HANG, None]
    plans = []
    for _ in range(6):
        fault = rng.choice(faults)
        plans.append(FaultPlan(fault, rng.randint(0, 12), 0.01) if fault else None)
    return plans


def failing_at_times(copy, rng):
    def copy_or_fail(*arguments):
        if rng.random() < 0.1:
            raise RuntimeError("no luck")
        copy(*arguments)

    return copy_or_fail


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("seed", range(2))
async def test_random_faults_write_no_wrong_byte_and_leave_nothing(transport, seed, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(BlockBorrower, "copy", failing_at_times(BlockBorrower.copy, rng))
    openers = [FaultyOpener(open_channel, random_plans(rng)) for _ in range(2)]
    sender, receiver = openers
    async with linked(
        sender_opener=sender, receiver_opener=receiver, blocks=BLOCKS, **over(transport, CONFIG)
    ) as pair:
        storm = Storm(pair, seed)
        async with asyncio.timeout(40):
            await asyncio.gather(*(storm.one(index) for index in range(TRANSFERS)))
        assert storm.done > TRANSFERS / 3
        assert storm.sources.counts().free == storm.targets.counts().free == BLOCKS
        # The storm is over; what is left of it goes, and the link serves.
        monkeypatch.undo()
        for opener in openers:
            opener.release()
        for attempt in range(20):
            try:
                await pair.move(f"after{attempt}", [1, 2, 3], [4, 5, 6])
                break
            except TransferFailed:
                continue
        else:
            pytest.fail("no transfer worked after the storm")
        await eventually(lambda: pair.quarantined() == 0)
        await eventually(pair.idle)
        for side in (pair.sender, pair.receiver):
            assert side.staging.taken == CONFIG.staging_buffers
            assert side.links_open == 1
