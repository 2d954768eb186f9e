"""Tenants in the queue: the one that had less goes first, and caps hold up their tenant alone."""

from __future__ import annotations

import asyncio

import pytest

from cluster.admission.admission_queue import AdmissionQueue
from cluster.admission.refusals import Refused
from cluster.config.tenant_limits import TenantConfig
from cluster.tenants.fair_share import FairShare
from engine.errors import InvalidRequest
from tests.cluster.admission.queue_pools import Pools, end, enter, make_placement, request
from tests.eventually import eventually


def make_queue(max_waiting, tenants=None):
    return AdmissionQueue(Pools(), make_placement(), max_waiting, FairShare(tenants or {}))


async def test_a_tenant_that_had_less_goes_first():
    queue = make_queue(9)
    big = [(await queue.enter(request(14000, batch=True, tenant="big")))[0]]
    # All want the blocks that one has.
    waiting = {
        name: enter(queue, 5000, most=9000, tenant=tenant)
        for name, tenant in (("big-1", "big"), ("big-2", "big"), ("small", "small"))
    }
    await eventually(lambda: queue.waiting == 3)
    big[0].release()
    await eventually(waiting["small"].done)
    await end(*waiting.values())


async def test_a_tenant_at_its_cap_waits_for_itself():
    caps = TenantConfig(max_concurrent=1, max_waiting_tokens=5500)
    queue = make_queue(9, {"default": caps})
    first = (await queue.enter(request(100)))[0]
    waiting = enter(queue, 100)
    await eventually(lambda: queue.waiting == 1)
    other = (await queue.enter(request(100, tenant="other")))[0]
    with pytest.raises(Refused) as refused:
        await queue.enter(request(5401))
    assert refused.value.reason == "tenant_waiting"
    first.release()
    (await waiting)[0].release()
    other.release()


async def test_a_tenants_kv_tokens_are_capped():
    queue = make_queue(9, {"default": TenantConfig(max_kv_tokens=400)})
    first = (await queue.enter(request(100, most=150, choices=2)))[:2]
    waiting = enter(queue, 50, most=101)
    await eventually(lambda: queue.waiting == 1)
    other = (await queue.enter(request(100, most=300, tenant="other")))[0]
    with pytest.raises(InvalidRequest):
        await queue.enter(request(100, most=201, choices=2))
    queue.assigner.release(first[0])
    (await waiting)[0].release()
    first[1].release()
    other.release()


async def test_requests_at_their_tenants_cap_delay_no_other():
    """There are more of them than one poll decides about."""
    caps = {"default": TenantConfig(), "capped": TenantConfig(max_concurrent=1)}
    queue = make_queue(99, caps)
    one = (await queue.enter(request(10, tenant="capped")))[0]
    waiting = [enter(queue, 10, tenant="capped") for _ in range(40)]
    await eventually(lambda: queue.waiting == 40)
    other = await asyncio.wait_for(queue.enter(request(10, batch=True)), 30)
    await end(*waiting)
    one.release()
    other[0].release()
