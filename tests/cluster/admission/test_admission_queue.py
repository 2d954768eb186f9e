"""The admission queue admits, keeps its bound, refuses with a time, forgets cancelled requests."""

from __future__ import annotations

import asyncio
import time

import pytest

from cluster.admission.admission_queue import AdmissionQueue
from cluster.admission.assignment import FirstTokenTiming
from cluster.admission.refusals import Refused
from cluster.placement.placement import Placement
from engine.errors import Unavailable
from tests.cluster.admission.queue_pools import Clock, end, enter, request
from tests.eventually import eventually


async def test_a_request_that_would_be_late_is_refused_in_time_with_a_retry_time(queue):
    await queue.enter(request())
    before = time.monotonic()
    with pytest.raises(Refused) as refused:
        for _ in range(4):
            await queue.enter(request(8000))
    assert refused.value.reason == "ttft"
    assert 0 < refused.value.retry_after_s < 50
    # It may wait for capacity through half of its budget of 10 s.
    assert time.monotonic() - before < 9.0


async def test_a_near_miss_waits_and_is_admitted_when_there_is_capacity(queue, placement):
    first = (await queue.enter(request()))[0]
    waiting = enter(queue, 4800)
    await eventually(lambda: queue.waiting == 1)
    queue.computed(first, FirstTokenTiming(0.1, 0, 0.001, 0.2))
    assigned = (await waiting)[0]
    assert queue.waiting == 0 and assigned.plan.pair.prefill.id == "p0"
    assigned.release()
    queue.assigner.release(first)
    assert placement.load_tracker.requests(assigned.plan.pair.decode) == 0


async def test_a_refusal_after_a_wait_has_its_decision_time(queue):
    """No sooner than it must be: until then there could have been capacity."""
    first = (await queue.enter(request()))[0]
    with pytest.raises(Refused) as refused:
        await queue.enter(request(50, most=15500, budget_s=2.0))
    assert refused.value.reason == "kv_blocks"
    assert refused.value.decided_s > 0.9
    first.release()


async def test_a_cancelled_waiting_request_takes_no_load(queue, placement, pools):
    first = (await queue.enter(request()))[0]
    waiting = enter(queue, 4800)
    await eventually(lambda: queue.waiting == 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert queue.waiting == 0
    first.release()
    assert placement.load_tracker.requests(pools.records["decode"][0]) == 0


async def test_a_request_cancelled_at_its_admission_takes_no_load(queue, placement, pools):
    """Its client cancels after the decision, and before the task goes on."""
    first = (await queue.enter(request(14000, batch=True)))[0]
    waiting = enter(queue, 14000, batch=True)
    await eventually(lambda: queue.waiting == 1)
    first.release()
    await eventually(lambda: placement.load_tracker.requests(pools.records["decode"][0]) == 1)
    await end(waiting)
    assert placement.load_tracker.requests(pools.records["decode"][0]) == 0


async def test_batch_work_waits_for_blocks_in_its_order_within_the_bound(queue):
    first = (await queue.enter(request(14000, batch=True)))[0]
    waiting = [enter(queue, 14000, batch=True) for _ in range(2)]
    await eventually(lambda: queue.waiting == 2)
    with pytest.raises(Refused) as refused:
        await queue.enter(request(14000, batch=True))
    assert refused.value.reason == "queue_full"
    first.release()
    await eventually(waiting[0].done)
    assert not waiting[1].done() and queue.waiting == 1
    waiting[0].result()[0].release()
    (await waiting[1])[0].release()


async def test_a_request_behind_a_crowd_is_decided_in_time(pools, placement):
    queue = AdmissionQueue(pools, placement, max_waiting=99)
    light = (await queue.enter(request(10, tenant="light")))[0]
    heavy = (await queue.enter(request(11000, batch=True, tenant="heavy")))[0]
    crowd = [enter(queue, 100, most=9000, tenant="light", budget_s=600.0) for _ in range(40)]
    await eventually(lambda: queue.waiting == 40)
    with pytest.raises(Refused) as refused:
        hopeless = queue.enter(request(100, most=9000, tenant="heavy", budget_s=2.0))
        await asyncio.wait_for(hopeless, 30)
    assert refused.value.reason == "kv_blocks"
    await end(*crowd)
    light.release()
    heavy.release()


async def test_a_missing_replica_is_reported_at_once_and_while_waiting(queue, pools):
    first = (await queue.enter(request()))[0]
    waiting = enter(queue, 4800)
    await eventually(lambda: queue.waiting == 1)
    pools.records["decode"] = []
    with pytest.raises(Unavailable):
        await waiting
    with pytest.raises(Unavailable):
        await queue.enter(request())
    first.release()


async def test_a_prompt_that_decode_has_cached_waits_for_no_one_at_prefill(pools, placement):
    """It is computed elsewhere than those that wait."""
    placement = Placement(256, costs=placement.costs)
    queue = AdmissionQueue(pools, placement, max_waiting=9)
    running = (await queue.enter(request(5000)))[0]
    waiting = enter(queue, 4000)
    await eventually(lambda: queue.waiting == 1)
    digests = [bytes([n]) * 8 for n in range(200)]
    placement.learn(pools.records["decode"][0], digests)
    async with asyncio.timeout(4):
        local = (await queue.enter(request(3210, digests=digests)))[0]
    assert local.plan.pair.local
    await end(waiting)
    running.release()
    local.release()


async def test_a_feasible_request_is_admitted_though_the_queue_is_full(pools, placement):
    queue = AdmissionQueue(pools, placement, max_waiting=0)
    first = (await queue.enter(request(5000)))[0]
    second = (await queue.enter(request(500)))[0]
    assert second.plan.forecast.feasible
    first.release()
    second.release()


async def test_the_queued_prefill_counts_all_waiting_prompts(pools, placement):
    """Six seconds of prompts: some are on the replica, the others wait here."""
    clock, told = Clock(), []
    queue = AdmissionQueue(pools, placement, max_waiting=9, clock=clock)
    more = {"budget_s": 20.0, "arrived_s": clock.now}
    first = (await queue.enter(request(1000, **more)))[0]
    waiting = [enter(queue, 1000, tell=told.append, **more) for _ in range(5)]
    await eventually(lambda: queue.waiting > 0)
    for left_s in (6.0, 5.5, 5.0):
        # The task of an admitted request ends one pass of the event loop after its admission.
        await eventually(lambda: queue.waiting == 5 - sum(task.done() for task in waiting))
        queued_s = queue.queued_prefill_s + placement.queue_s("p0", clock.now)
        assert queued_s == pytest.approx(left_s, rel=0.1)
        clock.now += 0.5
        told.clear()
        await eventually(lambda: bool(told))
    await end(*waiting)
    assert queue.queued_prefill_s == 0
    first.release()


async def test_unserved_batch_requests_are_counted_separately(queue):
    """It waits for blocks; no request of the other lanes waits for a pool."""
    first = (await queue.enter(request(14000, batch=True)))[0]
    waiting = [enter(queue, 14000, batch=True) for _ in range(2)]
    await eventually(lambda: queue.waiting == 2)
    later = time.monotonic() + 2.0
    assert queue.unserved_batch(later) == 1  # the first one, about which each poll decides
    assert not queue.unserved(later)
    assert queue.queued_prefill_s == 0
    await end(*waiting)
    first.release()
