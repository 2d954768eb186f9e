"""Who was told to come back and came: its place is kept while it waits, and no longer."""

from __future__ import annotations

import asyncio
import time

import pytest

from cluster.admission.admission_queue import AdmissionQueue
from cluster.admission.refusals import Refused
from cluster.discovery.cold_start import ColdStarts
from cluster.placement.types import Forecast, PlacementRequest
from tests.cluster.admission.queue_pools import Pools, make_placement
from tests.cluster.scripted_generator import eventually


@pytest.fixture
def pools():
    return Pools(ColdStarts(("decode",), guess_s=1000.0))


@pytest.fixture
def gate(pools):
    return AdmissionQueue(pools, make_placement(), max_waiting=9)


def ask(tokens, **more):
    return PlacementRequest(
        tokens, tokens + 10, **{"arrived_s": time.monotonic(), "budget_s": 10.0, **more}
    )


def kept(gate):
    """How many that came have a place."""
    return sum(slot.here for slot in gate._admission._reserved._slots)


@pytest.fixture
async def returned(gate):
    """One of key "a" that came when told to and must wait, behind five seconds of work."""
    now = time.monotonic()
    gate._admission.refuse("ttft", ask(4800, key="a"), Forecast(0.1, now + 10, alone_s=0.1), now)
    first = (await gate.enter(ask(5000)))[0]
    task = asyncio.create_task(gate.enter(ask(4800, key="a")))
    await eventually(lambda: gate.held == 1)
    assert kept(gate) == 1
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    first.release()


async def test_who_came_and_went_away_leaves_nothing(gate, returned):
    returned.cancel()
    with pytest.raises(asyncio.CancelledError):
        await returned
    assert kept(gate) == 0 and gate.held == 0


async def test_who_came_to_a_pool_that_sleeps_leaves_nothing(gate, pools, returned):
    pools.records["decode"] = []
    with pytest.raises(Refused) as refused:
        await returned
    assert refused.value.reason == "starting"
    assert kept(gate) == 0


async def test_a_twin_that_is_decided_takes_nothing_of_one_that_waits(gate, returned):
    admitted = (await gate.enter(ask(50, key="a", batch=True)))[0]
    with pytest.raises(Refused):
        await gate.enter(ask(8000, key="a", budget_s=1.0))
    assert kept(gate) == 1 and not returned.done()
    admitted.release()


async def test_who_is_admitted_or_refused_uses_its_time_up(gate, pools):
    now = time.monotonic()
    for key in "ab":
        found = Forecast(0.1, now + 10, alone_s=0.01)
        gate._admission.refuse("ttft", ask(50, key=key), found, now)
    first = (await gate.enter(ask(5000, key="a")))[0]
    assert kept(gate) == 0
    with pytest.raises(Refused):
        await gate.enter(ask(8000, key="b", budget_s=1.0))
    assert kept(gate) == 0
    first.release()
