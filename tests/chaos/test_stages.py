"""A peer that dies, freezes or is cut off, and bytes that change, at each step of a hand-over."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from engine.errors import TransferFailed
from engine.kv.block_pool import BlockPool
from kv_transfer.errors import ChecksumMismatch
from kv_transfer.receiver import Peer
from kv_transfer.transports.fault_injection import Fault, FaultPlan, FaultyOpener
from kv_transfer.transports.selection import open_channel
from tests.chaos.proxy import Proxy
from tests.chaos.stages import BLOCKS, STAGES, opener_for, start
from tests.kv_transfer.rig import (
    QUICK,
    apart,
    eventually,
    linked,
    make_cache,
    receiving,
    same,
    sending,
    untouched,
)

# Death is seen within 1 to 5 s; the rest is for a busy machine.
SEEN_S = 20.0
START_S = 100.0

pytestmark = pytest.mark.timeout(300)


class Receiving:
    """Transfers into blocks of a real pool, given back when they end."""

    def __init__(self, receiver, cache, links=1):
        self.receiver, self.cache, self.links = receiver, cache, links
        self.source = make_cache(seed=1)
        self.pool = BlockPool(cache.blocks)
        self.asked = set()

    def task(self, peer, stage):
        return asyncio.create_task(self.one(peer, stage))

    async def one(self, peer, stage):
        owner = f"{peer.replica} {stage}"

        async def admit(offered):
            self.asked.add(stage)
            if stage == "offered":
                await asyncio.Event().wait()
            return self.pool.allocate(owner, offered.blocks), 1

        try:
            return await self.receiver.receive(peer, stage, admit, 30.0)
        finally:
            self.pool.release(owner)

    def reached(self, replica, stage):
        """Whether the receiver's side is where the stage is."""
        owner = f"{replica} {stage}"
        if stage == "expected":
            return self.receiver.links_open == self.links
        if stage == "offered":
            return stage in self.asked
        written = self.pool.blocks_of(owner)
        if stage == "sent":
            return bool(written) and same(self.source, list(range(BLOCKS)), self.cache, written)
        return any(layer[:, list(written)].any() for layer in self.cache.layers)


@asynccontextmanager
async def children():
    """A sender process for each stage: its process and its address."""
    started = {}
    try:
        for stage in STAGES:
            command = [sys.executable, "-m", "tests.chaos.stages", stage]
            pipe = asyncio.subprocess.PIPE
            started[stage] = await asyncio.create_subprocess_exec(*command, stdout=pipe)
        addresses = {}
        for stage, process in started.items():
            line = await asyncio.wait_for(process.stdout.readline(), START_S)
            addresses[stage] = json.loads(line)["address"]
        yield started, addresses
    finally:
        for process in started.values():
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_sender_that_dies_or_freezes_at_any_step(how):
    config = apart("auto")
    async with (
        children() as (processes, addresses),
        sending("survivor", config) as alive,
        receiving("d0", config, make_cache(blocks=200)) as (receiver, cache),
    ):
        side = Receiving(receiver, cache, links=len(STAGES) + 1)
        doomed = [side.task(Peer(stage, addresses[stage]), stage) for stage in STAGES]
        survivor = side.task(alive.peer, "early")
        handing = start(alive.sender, "early")
        for stage in STAGES:
            await eventually(lambda stage=stage: side.reached(stage, stage))
        died = time.monotonic()
        for process in processes.values():
            process.send_signal(how)
        for task in doomed:
            with pytest.raises(TransferFailed):
                await asyncio.wait_for(task, SEEN_S)
        print(f"{how.name}: seen after {time.monotonic() - died:.2f} s at all steps")
        written = list(side.pool.blocks_of("survivor early"))
        assert side.pool.counts().used == len(written) == BLOCKS
        handing.complete(7)
        await handing.committed(5.0)
        assert (await survivor).first_token == 7
        assert same(alive.cache, list(range(BLOCKS)), cache, written)
        assert side.pool.counts().free == 200
        staging = receiver.staging
        await eventually(lambda: staging.quarantined == 0, 2 * QUICK.io_timeout_s + 5)
        await handing.close("done")


@pytest.mark.parametrize("stage", STAGES)
async def test_a_cut_cable_at_any_step(stage):
    """Both sides give up within the silence they allow; the next transfer links anew."""
    async with (
        sending("p0", QUICK, make_cache(seed=1), opener_for(stage)) as alive,
        Proxy(int(alive.peer.address.rpartition(":")[2])) as proxy,
        receiving("d0", QUICK) as (receiver, cache),
    ):
        # The proof names the address that was dialled.
        alive.server.address = proxy.address
        side, peer = Receiving(receiver, cache), Peer("p0", proxy.address)
        task, handing = side.task(peer, stage), start(alive.sender, stage)
        await eventually(lambda: side.reached("p0", stage))
        proxy.cut()
        with pytest.raises(TransferFailed):
            await asyncio.wait_for(task, SEEN_S)
        await eventually(lambda: alive.sender.links_open == 0, SEEN_S)
        if handing is not None:
            handing.complete(1)
            with pytest.raises(TransferFailed):
                await handing.committed(1.0)
            await handing.close("done")
        assert side.pool.counts().free == cache.blocks
        for layer in cache.layers:
            layer.zero_()
        again = start(alive.sender, "early")
        later = side.task(peer, "early")
        again.complete(3)
        await again.committed(5.0)
        assert (await later).first_token == 3
        assert same(alive.cache, list(range(BLOCKS)), cache, list(range(BLOCKS)))
        await again.close("done")


@pytest.mark.parametrize("call", range(0, 12, 2))
@pytest.mark.parametrize("transport", ["gloo", "shared_memory"])
async def test_a_byte_that_changes_in_any_frame(transport, call):
    """Of the frames that leave early and of those at the end: never committed, then retried."""
    config = replace(QUICK, transport=transport)
    opener = FaultyOpener(open_channel, [FaultPlan(Fault.CORRUPT, call)])
    async with linked(config, receiver_opener=opener) as pair:
        side = Receiving(pair.receiver, pair.target)
        task, handing = side.task(pair.peer, "early"), start(pair.sender, "early")
        await eventually(lambda: task.done() or side.reached("p0", "early"))
        handing.complete(1)
        with pytest.raises(TransferFailed):
            await handing.committed(5.0)
        await handing.close("done")
        with pytest.raises(ChecksumMismatch):
            await task
        for layer in pair.target.layers:
            layer.zero_()
        await pair.move("again", list(range(24)), list(range(24, 48)))
        assert untouched(pair.target, but=list(range(24, 48)))
