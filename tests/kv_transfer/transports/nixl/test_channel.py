"""Reading blocks in place over NIXL: loans, errors and ends, with a stand-in for NIXL itself."""

from __future__ import annotations

import asyncio
import gc
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.errors import ConfigError, TransferFailed
from kv_transfer.config import TransferConfig
from kv_transfer.errors import ChannelBroken, LinkBroken, LinkRefused, Withdrawn
from kv_transfer.frames import borrowed_blocks
from kv_transfer.sender import KvSender
from kv_transfer.transports.fault_injection import Fault, FaultPlan, FaultyOpener
from kv_transfer.transports.nixl import channel as nixl
from kv_transfer.transports.nixl.agent import ReadAgent, ranges
from kv_transfer.transports.registry import candidates
from kv_transfer.transports.selection import TransportSide, choose, open_channel, unverified
from tests.kv_transfer.rig import (
    HOST,
    LAYOUT,
    eventually,
    linked,
    make_cache,
    same,
    untouched,
    wait_until,
    with_transport,
)
from tests.kv_transfer.transports.contract import ChannelContract
from tests.kv_transfer.transports.nixl.stand_in import StandIn

OVER_NIXL = with_transport("nixl")
# No heartbeat ends a link here: the deadline of a read does.
PATIENT = replace(OVER_NIXL, io_timeout_s=0.3, silence_s=20.0)


@pytest.fixture(autouse=True)
def world(monkeypatch):
    stand_in = StandIn()
    monkeypatch.setattr(nixl, "bindings", lambda: stand_in)
    yield stand_in
    # The thread of a link closes its channel, also behind the end of the test.
    assert wait_until(lambda: gc.collect() >= 0 and not stand_in.agents), "an agent is left"


@pytest.mark.parametrize("channels", ["nixl"], indirect=True)
class TestStandInContract(ChannelContract):
    """Messages, as KV in frames goes."""


async def fails(pair, transfer, blocks, written):
    """The receiver's error; the sender's side ends too."""
    sending, taking = pair.offer(transfer, blocks), pair.take(transfer, written)
    with pytest.raises(TransferFailed) as failed:
        await taking
    await asyncio.gather(sending, return_exceptions=True)
    return failed.value


async def test_blocks_are_read_in_place_without_frames(world):
    async with linked(OVER_NIXL) as pair:
        await pair.move("t", [4, 9, 2, 3], [8, 1, 40, 41])
        assert pair.sender.counters.frames_announced == 0
        assert pair.sender.bytes_moved == pair.receiver.bytes_moved > 0
        assert untouched(pair.target, but=[8, 1, 40, 41])
        await eventually(pair.idle)


def lending(patch, then):
    """Have `then` called with each later loan and its lender."""
    lend = borrowed_blocks.BlockLender.lend

    def lend_and_tell(lender, blocks, *, remote):
        loan = lend(lender, blocks, remote=remote)
        then(lender, loan)
        return loan

    patch.setattr(borrowed_blocks.BlockLender, "lend", lend_and_tell)


def take_back(lender, loan):
    lender.words[loan.word] = 0


async def test_a_loan_that_has_ended_is_not_read_at_all(world):
    async with linked(OVER_NIXL) as pair:
        await pair.move("warm", [1], [1])
        with pytest.MonkeyPatch.context() as patch:
            lending(patch, take_back)
            before = world.reads
            assert isinstance(await fails(pair, "t", [1, 2], [5, 6]), Withdrawn)
        assert world.reads == before + 1, "more than the word was read"
        assert untouched(pair.target, but=[1])
        await pair.move("next", [1, 2], [5, 6])
        assert pair.receiver.counters.links_opened == 1


async def test_a_loan_that_ends_during_the_read_fails_its_transfer_alone(world, monkeypatch):
    loans = []
    lending(monkeypatch, lambda *loan: loans.append(loan))
    async with linked(OVER_NIXL) as pair:
        await pair.move("warm", [1], [1])

        def end_loan(theirs):
            if theirs[0][2] > loans[-1][0].words.element_size():  # it is no read of a word
                take_back(*loans[-1])

        world.before_read = end_loan
        assert isinstance(await fails(pair, "t", [1, 2], [5, 6]), Withdrawn)
        world.before_read = lambda theirs: None
        await pair.move("next", [1, 2], [5, 6])
        assert pair.receiver.counters.links_opened == 1


async def test_a_read_that_cannot_begin_fails_its_transfer_alone(world):
    async with linked(OVER_NIXL) as pair:
        await pair.move("warm", [1], [1])
        world.refused = True
        assert not isinstance(await fails(pair, "t", [1, 2], [5, 6]), LinkBroken)
        world.refused = False
        await pair.move("next", [1, 2], [5, 6])
        assert pair.receiver.counters.links_opened == 1
        assert untouched(pair.target, but=[1, 5, 6])


async def test_a_read_that_fails_ends_its_link_and_the_next_one_works(world):
    async with linked(OVER_NIXL) as pair:
        await pair.move("warm", [1], [1])
        world.failing = True
        assert isinstance(await fails(pair, "t", [1, 2], [5, 6]), LinkBroken)
        world.failing = False
        await pair.move("next", [1, 2], [7, 8])
        assert pair.receiver.counters.links_opened == 2


async def test_a_read_that_never_ends_is_over_in_time_and_writes_nothing_later(world):
    async with linked(PATIENT) as pair:
        await pair.move("warm", [1], [1])
        world.held = True
        error = await fails(pair, "t", [1, 2], [5, 6])
        assert isinstance(error, LinkBroken)
        assert "took longer than 0.3 s" in error.message
        assert world.waiting
        world.held = False
        world.let_go()
        assert untouched(pair.target, but=[1])
        await pair.move("next", [1, 2], [5, 6])


async def test_the_end_of_a_link_stops_its_read(world):
    async with linked(replace(PATIENT, io_timeout_s=30.0)) as pair:
        await pair.move("warm", [1], [1])
        world.held = True
        taking, sending = pair.take("t", [5, 6]), pair.offer("t", [1, 2])
        await eventually(lambda: bool(world.waiting))
        await pair.receiver.close()
        with pytest.raises(TransferFailed):
            await taking
        world.let_go()
        assert untouched(pair.target, but=[1])
        await asyncio.gather(sending, return_exceptions=True)


@pytest.mark.parametrize("aborted", [False, True])
def test_when_a_read_has_failed_nothing_of_it_can_be_written(world, aborted):
    """At once, because the blocks may have another owner from now on."""
    here, there = torch.zeros(64, dtype=torch.uint8), torch.ones(64, dtype=torch.uint8)
    reader, lender = (ReadAgent(world, serves=serves) for serves in (False, True))
    reader.register(here)
    lender.register(there)
    peer = reader.meet(lender.metadata())
    end = threading.Event()
    world.held = True
    if aborted:
        end.set()
    places = [
        ("DRAM", ranges(np.array([one.data_ptr()]), np.array([64]), 0)) for one in (there, here)
    ]
    with pytest.raises(ChannelBroken, match="aborted" if aborted else "longer than"):
        reader.read(peer, *places, 20.0 if aborted else 0.05, end)
    world.let_go()
    assert not here.any()
    lender.close()


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.DIE_HALF, Fault.SLOW])
async def test_faults_of_a_read(fault):
    opener = FaultyOpener(open_channel, [FaultPlan(fault, 1, 0.05)])
    async with linked(OVER_NIXL, receiver_opener=opener) as pair:
        await pair.move("warm", [1], [1])
        if fault is Fault.SLOW:
            await pair.move("slow", [1, 2, 3], [5, 6, 7])
        else:
            assert fault.value in (await fails(pair, "t", [1, 2, 3], [5, 6, 7])).message
            await pair.move("next", [1, 2, 3], [5, 6, 7])


async def test_kv_goes_in_frames_if_a_cache_may_change_its_order(monkeypatch):
    monkeypatch.setattr(borrowed_blocks, "settled_order", lambda cache: None)
    async with linked(OVER_NIXL) as pair:
        await pair.move("t", [4, 9, 2], [8, 1, 40])
        assert pair.sender.counters.frames_announced > 0


async def test_one_agent_serves_all_links_of_a_sender(world):
    async with linked(OVER_NIXL) as pair:
        await pair.move("t", [1], [1])
        size = pair.source.memory.numel()
        served = [state for state in world.agents.values() if size_of_largest(state) == size]
        # That of the sender, and the receiver's own of this link.
        assert len(world.agents) == 3
        assert len(served) == 2
        assert same(pair.source, [1], pair.target, [1])


def size_of_largest(state):
    return max((region[2] for region in state.registered), default=0)


def absent():
    raise ImportError("No module named 'nixl'")


def test_it_is_refused_by_name_at_the_start_where_it_is_absent(monkeypatch):
    monkeypatch.setattr(nixl, "bindings", absent)
    with pytest.raises(ConfigError, match=r"kv\.transport: nixl cannot be loaded, install"):
        KvSender("p0", HOST, make_cache(), OVER_NIXL)
    KvSender("p0", HOST, make_cache(), TransferConfig())
    here, there = (TransportSide(name, "cpu", name) for name in ("auto", "nixl"))
    with pytest.raises(LinkRefused, match="nixl cannot be loaded"):
        choose(here, there)


def test_auto_never_takes_it_and_its_name_does():
    here, there = TransportSide("auto", "cpu", "a"), TransportSide("auto", "cpu", "b")
    assert "nixl" not in candidates("auto")
    assert choose(here, there).transport != "nixl"
    assert choose(here, replace(there, transport="nixl")).transport == "nixl"
    assert unverified("nixl") == ["nixl"]
    assert "nixl" not in unverified("auto")


def test_a_cache_is_lent_in_its_order_unless_the_order_may_change():
    plain, paired = make_cache(), make_cache()
    paired.formats[:] = ["pairs"] * len(LAYOUT.layers)
    mixed = make_cache()
    mixed.formats[0] = "pairs"
    later = make_cache(layout=replace(LAYOUT, dtype="bfloat16"))
    orders = [borrowed_blocks.settled_order(cache) for cache in (plain, paired, mixed, later)]
    assert orders == ["plain", "pairs", None, None]
