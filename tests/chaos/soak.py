"""`make soak-transfer`: random faults on one pair until there were enough, and then the accounts.

Channels corrupt, fail, die half way or stop moving; either side of a hand-over gives up at a random
moment, also while its prompt is being computed. Whoever got KV looks at every byte. Whoever failed
marks its blocks and looks later whether anybody wrote over the mark. Source blocks are overwritten
as soon as their hand-over has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from dataclasses import replace
from functools import partial

from cluster.work_progress import WorkProgress
from engine.errors import DeadlineExceeded, TandemError, TransferFailed
from engine.kv.block_pool import BlockPool
from kv_transfer.errors import ChannelBroken
from kv_transfer.sender import OutgoingKv
from kv_transfer.transports.fault_injection import Fault
from kv_transfer.transports.selection import open_channel
from tests.kv_transfer.rig import LAYOUT, QUICK, Blocks, eventually, linked, loop_turns

BLOCKS = 160
LAYERS = len(LAYOUT.layers)
AT_ONCE = 8
MARK = -7.0
IO_S = 0.25
CONFIG = replace(QUICK, io_timeout_s=IO_S, silence_s=2.0, heartbeat_s=0.2, max_transfers=64)
# For each send and receive of a channel.
ODDS = {Fault.CORRUPT: 0.03, Fault.FAIL: 0.01, Fault.DIE_HALF: 0.01, Fault.HANG: 0.002}
FATES = ("none", "none", "cancel send", "cancel receive", "withdraw", "prompt fails", "too late")


class UnluckyChannel:
    """A channel that goes wrong at random; a call that hangs does so for its timeout.

    Nothing is passed on after a fault that breaks it: the two sides would no longer match.
    """

    def __init__(self, inner, rng, counts):
        self.inner, self.rng, self.counts = inner, rng, counts
        self.dead = False
        self.staging_device, self.ahead = inner.staging_device, inner.ahead
        self.abort, self.close = inner.abort, inner.close

    def send(self, buffer):
        fault = self.draw()
        if self.dead:
            return partial(self.break_by, fault)
        if fault is Fault.CORRUPT:
            buffer = buffer.clone()
            buffer[self.rng.randrange(buffer.numel())] ^= 1 << self.rng.randrange(8)
        return self.inner.send(buffer)

    def receive(self, staging, size):
        fault = self.draw()
        whole = staging.clone() if fault is Fault.DIE_HALF else staging
        if self.dead and fault is not Fault.DIE_HALF:
            return partial(self.break_by, fault)
        return partial(self.received, self.inner.receive(whole, size), fault, staging, size)

    def received(self, receipt, fault, staging, size, timeout_s):
        arrived = receipt(timeout_s)
        if fault is Fault.DIE_HALF:
            staging[: size // 2] = arrived.data[: size // 2]
            self.break_by(fault, timeout_s)
        if fault is Fault.CORRUPT:
            arrived = replace(arrived, data=arrived.data.clone())
            arrived.data[self.rng.randrange(size)] ^= 1 << self.rng.randrange(8)
        return arrived

    def draw(self):
        if self.dead:
            return Fault.FAIL
        fault = self.rng.choices([*ODDS, None], [*ODDS.values(), 1 - sum(ODDS.values())])[0]
        if fault is not None:
            self.counts[fault.name] += 1
        self.dead = fault in (Fault.FAIL, Fault.DIE_HALF, Fault.HANG)
        return fault

    def break_by(self, fault, timeout_s):
        if fault is Fault.HANG:
            time.sleep(timeout_s)
            raise ChannelBroken("the channel stopped moving")
        if fault in (Fault.FAIL, Fault.DIE_HALF):
            self.inner.abort()
            raise ChannelBroken("the channel broke")


class Soak:
    """Hand-overs one after the other by several workers at once, each with its own numbers."""

    def __init__(self, pair, rng, counts):
        self.pair, self.rng, self.counts = pair, rng, counts
        self.sources, self.targets = BlockPool(BLOCKS), BlockPool(BLOCKS)
        self.blocks = Blocks()
        self.names = 0

    async def run(self, faults, progress):
        async def worker():
            while (done := self.counts.total() - self.counts["exact"]) < faults:
                progress.at(done)
                await self.one()

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))

    async def one(self):
        self.names += 1
        name, fate = f"t{self.names}", self.rng.choice(FATES)
        count, value = self.rng.randint(1, 24), float(self.names % 1000 + 1)
        sending = asyncio.create_task(self.send(name, count, value, fate))
        taking = asyncio.create_task(self.take(name, count, value))
        if fate in ("cancel send", "cancel receive", "withdraw"):
            await loop_turns(self.rng.randrange(40))
            self.counts[fate] += 1
        if fate == "cancel send":
            sending.cancel()
        elif fate == "cancel receive":
            taking.cancel()
        elif fate == "withdraw":
            await self.pair.sender.withdraw(name, "d0", "soak")
        results = await asyncio.gather(sending, taking, return_exceptions=True)
        allowed = (TransferFailed, DeadlineExceeded, asyncio.CancelledError, ArithmeticError)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, allowed):
                raise result
        self.counts["exact"] += results[1] is None

    async def send(self, name, count, value, fate):
        blocks = await self.blocks.take(self.sources, name, count)
        fill(self.pair.source, blocks, MARK)
        tokens = count * LAYOUT.block_size
        handing = self.pair.sender.begin(OutgoingKv(name, "d0", tuple(blocks), tokens, None))
        try:
            await self.compute(handing, blocks, value, fate)
            handing.complete(count)
            late = fate == "too late"
            self.counts[fate] += late
            return await handing.committed(0.001 if late else 3.0)
        finally:
            try:
                await handing.close("given up")
            finally:
                fill(self.pair.source, blocks, MARK)
                self.blocks.free(self.sources, name)

    async def compute(self, handing, blocks, value, fate):
        """Layer by layer, a few blocks at a time."""
        step = self.rng.randint(1, len(blocks))
        for start in range(0, len(blocks), step):
            for number, layer in enumerate(self.pair.source.layers):
                layer[:, blocks[start : start + step]] = value
                handing.reached((start + step) * LAYOUT.block_size, number + 1)
                if self.rng.random() < 0.3:
                    await loop_turns(1)
            if fate == "prompt fails" and self.rng.random() < 0.5:
                self.counts[fate] += 1
                raise ArithmeticError("the prompt failed")

    async def take(self, name, count, value):
        early = self.rng.random() < 0.6

        async def admit(offered):
            assert offered.blocks == count
            if offered.first_token is None and not early:
                return None
            blocks = await self.blocks.take(self.targets, name, count)
            fill(self.pair.target, blocks, MARK)
            return blocks, self.targets.generation(blocks[0])

        try:
            received = await self.pair.receiver.receive(self.pair.peer, name, admit, 3.0)
            assert received.first_token == count
            assert has_bytes(self.pair.target, self.targets.blocks_of(name), value), "a wrong byte"
        except (TandemError, asyncio.CancelledError):
            owned = self.targets.blocks_of(name)
            if owned:
                fill(self.pair.target, owned, MARK)
                await asyncio.sleep(0.02)
                assert has_bytes(self.pair.target, owned, MARK), "a late write"
            raise
        finally:
            self.blocks.free(self.targets, name)


def fill(cache, blocks, value):
    for layer in cache.layers:
        layer[:, list(blocks)] = value


def has_bytes(cache, blocks, value):
    return bool(blocks) and all((layer[:, list(blocks)] == value).all() for layer in cache.layers)


async def soak(transport: str, faults: int, seed: int, limit_s: float) -> Counter[str]:
    """That many faults over that transport; what happened how often. Raises for what leaks."""
    rng, counts = random.Random(seed), Counter()

    def opener(spec):
        return UnluckyChannel(open_channel(spec), random.Random(rng.random()), counts)

    config = replace(CONFIG, transport=transport)
    async with linked(config, opener, opener, blocks=BLOCKS) as pair:
        run = Soak(pair, rng, counts)
        with WorkProgress(f"faults, {transport}", faults) as progress:
            async with asyncio.timeout(limit_s):
                await run.run(faults, progress)
        await eventually(lambda: pair.quarantined() == 0, 4 * IO_S + 5)
        await eventually(pair.idle)
        for pool in (run.sources, run.targets):
            assert pool.counts().free == pool.total, "a leaked block"
        for side in (pair.sender, pair.receiver):
            assert side.staging.taken <= CONFIG.staging_buffers, "a leaked buffer"
            counts["links"] = side.counters.links_opened
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=10_000)
    parser.add_argument("--transports", nargs="+", default=["loopback", "shared_memory", "gloo"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=1800.0)
    arguments = parser.parse_args()
    each = -(-arguments.faults // len(arguments.transports))
    for transport in arguments.transports:
        began = time.monotonic()
        found = asyncio.run(soak(transport, each, arguments.seed, arguments.limit_s))
        summary = ", ".join(f"{name} {count}" for name, count in sorted(found.items()) if count)
        print(f"{transport}, {time.monotonic() - began:.0f} s: {summary}", flush=True)
