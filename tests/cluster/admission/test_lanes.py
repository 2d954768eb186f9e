"""Lanes and tenants in the queue: the capacity and the slots that each leaves to the others."""

from __future__ import annotations

import pytest

from cluster.admission.admission_queue import AdmissionQueue
from cluster.admission.refusals import Refused
from cluster.config.tenant_limits import TenantConfig
from cluster.placement.placement import Placement
from cluster.replica_record import ReplicaLoad, ReplicaRecord
from cluster.tenants.fair_share import FairShare
from tests.cluster.admission.queue_pools import Pools, end, enter, make_placement, request
from tests.eventually import eventually


def small_batch(limit):
    pools = Pools()
    load = ReplicaLoad(blocks_total=1000, block_size=16, batch_limit=limit)
    pools.records["decode"] = [ReplicaRecord("d0", "decode", "", 1, load=load)]
    return pools


async def test_a_request_without_a_batch_slot_waits_for_one():
    queue = AdmissionQueue(small_batch(2), make_placement(), max_waiting=8)
    streams = [(await queue.enter(request(100, budget_s=1.0)))[0] for _ in range(2)]
    for one in streams:
        one.prefilled()
    waiting = enter(queue, 100, budget_s=10.0)
    await eventually(lambda: queue.waiting == 1)
    streams[0].release()
    (assigned,) = await waiting
    with pytest.raises(Refused) as refused:
        await queue.enter(request(100, budget_s=0.2))
    assert refused.value.reason == "decode_batch"
    assert refused.value.retry_after_s > 0
    for one in (assigned, streams[1]):
        one.release()


async def test_if_batches_are_formed_many_more_may_come():
    placement = Placement(batch_slots=False)
    queue = AdmissionQueue(small_batch(2), placement, max_waiting=8)
    assigned = [(await queue.enter(request(100, budget_s=600.0)))[0] for _ in range(6)]
    for one in assigned:
        one.release()


async def test_the_batch_lane_leaves_blocks_and_batch_slots_to_the_others():
    queue = AdmissionQueue(small_batch(8), make_placement(), max_waiting=8)
    waiting = [enter(queue, 100, most=3000, batch=True) for _ in range(8)]
    await eventually(lambda: queue.waiting == 5)
    (large,) = await queue.enter(request(100, budget_s=1.0, most=3900))
    large.release()
    await end(*waiting)
    waiting = [enter(queue, 100, batch=True) for _ in range(8)]
    await eventually(lambda: queue.waiting == 2)
    others = [(await queue.enter(request(100, budget_s=1.0)))[0] for _ in range(2)]
    for one in others:
        one.release()
    await end(*waiting)


async def test_batch_prompts_wait_here_and_not_all_on_a_replica():
    placement = Placement(batch_prompts=3, costs=make_placement().costs)
    queue = AdmissionQueue(Pools(), placement, max_waiting=8)
    waiting = [enter(queue, 100, batch=True) for _ in range(8)]
    await eventually(lambda: queue.waiting == 5)
    first = waiting[0].result()[0]
    first.prefilled()
    await eventually(lambda: queue.waiting == 4)
    (chat,) = await queue.enter(request(100, budget_s=1.0))
    chat.release()
    await end(*waiting)


async def test_the_newest_batch_request_gives_way_to_a_chat():
    queue = AdmissionQueue(Pools(), make_placement(), max_waiting=4)
    (running,) = await queue.enter(request(700, most=12000, budget_s=1.0))
    batch = [enter(queue, 100, most=9000, batch=True) for _ in range(4)]
    await eventually(lambda: queue.waiting == 4)
    chat = enter(queue, 100, most=9000, budget_s=10.0)
    await eventually(batch[3].done)
    assert batch[3].exception().reason == "queue_full"
    assert batch[3].exception().retry_after_s > 0
    assert queue.waiting == 4 and not chat.done()
    running.release()
    (assigned,) = await chat
    assigned.release()
    await end(*batch)


async def test_one_tenant_does_not_fill_the_queue_that_another_wants():
    caps = {"default": TenantConfig(), "greedy": TenantConfig(max_concurrent=1)}
    queue = AdmissionQueue(Pools(), make_placement(), 4, FairShare(caps))
    (running,) = await queue.enter(request(10, tenant="greedy", budget_s=60.0))
    greedy = [enter(queue, 10, tenant="greedy", budget_s=60.0) for _ in range(4)]
    await eventually(lambda: queue.waiting == 4)
    (large,) = await queue.enter(request(10, most=15000, tenant="other"))
    others = [enter(queue, 10, most=9000, tenant="other", budget_s=60.0) for _ in range(3)]
    await eventually(lambda: sum(one.done() for one in (*greedy, *others)) == 3)
    refused = [one for one in (*greedy, *others) if one.done()]
    assert refused == [greedy[2], greedy[3], others[2]]
    assert {one.exception().reason for one in refused} == {"queue_full"}
    large.release()
    running.release()
    await end(*greedy, *others)
