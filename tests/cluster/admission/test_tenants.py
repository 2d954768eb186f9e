"""Tenants at the gate: who had less goes first, and whose caps are reached waits for itself."""

from __future__ import annotations

import asyncio

import pytest

from cluster.admission.admission_queue import AdmissionQueue
from cluster.admission.refusals import Refused
from cluster.config.tenant_limits import TenantConfig
from cluster.tenants.fair_share import FairShare
from engine.errors import InvalidRequest
from tests.cluster.admission.queue_pools import Pools, make_placement
from tests.cluster.admission.test_admission_queue import ask
from tests.cluster.scripted_generator import eventually


def make_gate(max_waiting, tenants=None):
    return AdmissionQueue(Pools(), make_placement(), max_waiting, FairShare(tenants or {}))


async def test_a_tenant_that_had_less_goes_first():
    gate = make_gate(9)
    big = [(await gate.enter(ask(14000, batch=True, tenant="big")))[0]]
    # All want the room that one has.
    held = {
        name: asyncio.create_task(gate.enter(ask(5000, most=9000, tenant=tenant)))
        for name, tenant in (("big-1", "big"), ("big-2", "big"), ("small", "small"))
    }
    await eventually(lambda: gate.held == 3)
    big[0].release()
    await eventually(held["small"].done)
    for task in held.values():
        task.cancel()
    await asyncio.gather(*held.values(), return_exceptions=True)


async def test_a_tenant_at_its_cap_waits_for_itself():
    caps = TenantConfig(max_concurrent=1, max_waiting_tokens=5500)
    gate = make_gate(9, {"default": caps})
    first = (await gate.enter(ask(100)))[0]
    held = asyncio.create_task(gate.enter(ask(100)))
    await eventually(lambda: gate.held == 1)
    other = (await gate.enter(ask(100, tenant="other")))[0]
    with pytest.raises(Refused) as refused:
        await gate.enter(ask(5401))
    assert refused.value.reason == "tenant_waiting"
    first.release()
    (await held)[0].release()
    other.release()


async def test_what_a_tenant_may_need_of_the_kv_cache_is_capped():
    gate = make_gate(9, {"default": TenantConfig(max_kv_tokens=400)})
    first = (await gate.enter(ask(100, most=150, choices=2)))[:2]
    held = asyncio.create_task(gate.enter(ask(50, most=101)))
    await eventually(lambda: gate.held == 1)
    other = (await gate.enter(ask(100, most=300, tenant="other")))[0]
    with pytest.raises(InvalidRequest):
        await gate.enter(ask(100, most=201, choices=2))
    gate.release(first[0])
    (await held)[0].release()
    first[1].release()
    other.release()


async def test_those_at_their_tenants_cap_are_in_nobodys_way():
    """More of them than are looked at in one go."""
    caps = {"default": TenantConfig(), "capped": TenantConfig(max_concurrent=1)}
    gate = make_gate(99, caps)
    one = (await gate.enter(ask(10, tenant="capped")))[0]
    held = [asyncio.create_task(gate.enter(ask(10, tenant="capped"))) for _ in range(40)]
    await eventually(lambda: gate.held == 40)
    other = await asyncio.wait_for(gate.enter(ask(10, batch=True)), 2)
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    one.release()
    other[0].release()
