"""Reads over UCX between two processes of which one is killed or frozen amid a read."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from engine.errors import TransferFailed
from kv_transfer.receiver import Peer
from tests.kv_transfer.remote_peer import BLOCKS, CONFIG, LAYOUT, Amid, offered
from tests.kv_transfer.rig import eventually, make_cache, needs_nixl, receiving, same, sending
from tests.kv_transfer.test_processes import SEEN_S, START_S, children

pytestmark = [needs_nixl, pytest.mark.timeout(300)]
PEER = "tests.kv_transfer.remote_peer"
WRITTEN = list(range(BLOCKS))


async def admit(_):
    return WRITTEN, 1


def lender(name):
    return ("send", {"name": name})


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_sender_dies_amid_a_read(how):
    """The receiver's transfer fails in time. Nothing is written later, even if the sender wakes."""
    source, target = make_cache(BLOCKS, LAYOUT, seed=1), make_cache(BLOCKS, LAYOUT)
    amid = Amid(None)
    async with (
        receiving("d0", CONFIG, target, amid) as (receiver, _),
        children(lender("victim"), lender("survivor"), module=PEER) as (victim, survivor),
    ):
        lost = Peer("victim", (await victim.line())["address"])
        kept = Peer("survivor", (await survivor.line())["address"])
        died = []

        def disturb():
            victim.signal(how)
            died.append(time.monotonic())

        amid.disturb = disturb
        with pytest.raises(TransferFailed):
            await receiver.receive(lost, "t0", admit, 30)
        seen_s = time.monotonic() - died[0]
        print(f"{how.name}: seen after {seen_s:.2f} s")
        assert seen_s < SEEN_S
        assert not same(source, WRITTEN, target, WRITTEN), "it was not amid the read"
        for layer in target.layers:
            layer.zero_()
        if how is signal.SIGSTOP:
            victim.signal(signal.SIGCONT)
            # It tells that its hand-over failed, or has ended: UCX may abort it when it wakes.
            await asyncio.wait_for(victim.process.stdout.readline(), START_S)
        assert not any(layer.any() for layer in target.layers), "a late write"
        await receiver.receive(kept, "t0", admit, 30)
        assert same(source, WRITTEN, target, WRITTEN)
        assert receiver.counters.frames_announced == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_receiver_dies_amid_its_read(how):
    """The sender's hand-over fails in time, and it serves another receiver."""
    async with sending("p0", CONFIG, make_cache(BLOCKS, LAYOUT, seed=1)) as side:

        def receiver(name, **more):
            return ("receive", {"name": name, "address": side.peer.address, **more})

        def hand_over(name):
            kv = offered(f"{name}-t", name)
            return asyncio.create_task(side.sender.hand_over(kv, 60.0))

        specs = (receiver("victim", dies=int(how)), receiver("survivor"))
        async with children(*specs, module=PEER) as (victim, survivor):
            doomed = hand_over("victim")
            await victim.line()
            await survivor.line()
            with pytest.raises(TransferFailed):
                await doomed
            kept = hand_over("survivor")
            assert await survivor.line() == {"same": True}
            await kept
            await eventually(lambda: side.sender.idle)
