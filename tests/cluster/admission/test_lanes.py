"""The gate between lanes and tenants: what each leaves to the others, of room and of places."""

from __future__ import annotations

import asyncio
import time

import pytest

from cluster.admission.admission_queue import AdmissionQueue
from cluster.admission.refusals import Refused
from cluster.config.tenant_limits import TenantConfig
from cluster.placement.placement import Placement
from cluster.placement.types import PlacementRequest
from cluster.replica_record import ReplicaLoad, ReplicaRecord
from cluster.tenants.fair_share import FairShare
from tests.cluster.admission.queue_pools import Pools, make_placement
from tests.cluster.scripted_generator import eventually


def ask(tokens=100, most=0, **more):
    values = {"arrived_s": time.monotonic(), "budget_s": 1.0, "key": object(), **more}
    return PlacementRequest(tokens, most or tokens + 10, **values)


def small_batch(limit):
    pools = Pools()
    load = ReplicaLoad(blocks_total=1000, block_size=16, batch_limit=limit)
    pools.records["decode"] = [ReplicaRecord("d0", "decode", "", 1, load=load)]
    return pools


def enter(gate, **more):
    return asyncio.create_task(gate.enter(ask(**more)))


async def end(*tasks):
    for task in tasks:
        task.cancel()
    for entered in await asyncio.gather(*tasks, return_exceptions=True):
        for placed in entered if isinstance(entered, list) else []:
            placed.release()


async def test_who_has_no_place_in_the_decode_batch_waits_for_one():
    gate = AdmissionQueue(small_batch(2), make_placement(), max_waiting=8)
    streams = [(await gate.enter(ask()))[0] for _ in range(2)]
    for one in streams:
        one.prefilled()
    held = enter(gate, budget_s=10.0)
    await eventually(lambda: gate.held == 1)
    streams[0].release()
    (placed,) = await held
    with pytest.raises(Refused) as refused:
        await gate.enter(ask(budget_s=0.2))
    assert refused.value.reason == "decode_batch"
    assert refused.value.retry_after_s > 0
    for one in (placed, streams[1]):
        one.release()


async def test_where_batches_are_formed_many_more_may_come():
    placement = Placement(batch_slots=False)
    gate = AdmissionQueue(small_batch(2), placement, max_waiting=8)
    placed = [(await gate.enter(ask(budget_s=600.0)))[0] for _ in range(6)]
    for one in placed:
        one.release()


async def test_batch_work_leaves_blocks_and_places_to_the_others():
    gate = AdmissionQueue(small_batch(8), make_placement(), max_waiting=8)
    held = [enter(gate, most=3000, batch=True) for _ in range(8)]
    await eventually(lambda: gate.held == 5)
    (large,) = await gate.enter(ask(most=3900))
    large.release()
    await end(*held)
    held = [enter(gate, batch=True) for _ in range(8)]
    await eventually(lambda: gate.held == 2)
    others = [(await gate.enter(ask()))[0] for _ in range(2)]
    for one in others:
        one.release()
    await end(*held)


async def test_batch_prompts_wait_here_and_not_all_on_a_replica():
    placement = make_placement()
    placement._batch_prompts = 3
    gate = AdmissionQueue(Pools(), placement, max_waiting=8)
    held = [enter(gate, batch=True) for _ in range(8)]
    await eventually(lambda: gate.held == 5)
    first = held[0].result()[0]
    first.prefilled()
    await eventually(lambda: gate.held == 4)
    (chat,) = await gate.enter(ask())
    chat.release()
    await end(*held)


async def test_a_chat_gets_the_place_of_the_newest_batch_request():
    gate = AdmissionQueue(Pools(), make_placement(), max_waiting=4)
    (running,) = await gate.enter(ask(700, most=12000))
    batch = [enter(gate, most=9000, batch=True) for _ in range(4)]
    await eventually(lambda: gate.held == 4)
    chat = enter(gate, most=9000, budget_s=10.0)
    await eventually(batch[3].done)
    assert batch[3].exception().reason == "queue_full"
    assert batch[3].exception().retry_after_s > 0
    assert gate.held == 4 and not chat.done()
    running.release()
    (placed,) = await chat
    placed.release()
    await end(*batch)


async def test_one_tenant_takes_up_no_places_that_another_wants():
    caps = {"default": TenantConfig(), "greedy": TenantConfig(max_concurrent=1)}
    gate = AdmissionQueue(Pools(), make_placement(), 4, FairShare(caps))
    (running,) = await gate.enter(ask(10, tenant="greedy", budget_s=60.0))
    greedy = [enter(gate, tokens=10, tenant="greedy", budget_s=60.0) for _ in range(4)]
    await eventually(lambda: gate.held == 4)
    (large,) = await gate.enter(ask(10, most=15000, tenant="other"))
    others = [enter(gate, tokens=10, most=9000, tenant="other", budget_s=60.0) for _ in range(3)]
    await eventually(lambda: sum(one.done() for one in (*greedy, *others)) == 3)
    refused = [one for one in (*greedy, *others) if one.done()]
    assert refused == [greedy[2], greedy[3], others[2]]
    assert {one.exception().reason for one in refused} == {"queue_full"}
    large.release()
    running.release()
    await end(*greedy, *others)
