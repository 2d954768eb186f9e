"""A promised retry that came is kept while its request waits, and no longer."""

from __future__ import annotations

import asyncio
import time

import pytest

from cluster.admission.admission_queue import AdmissionQueue
from cluster.admission.refusals import Refused
from cluster.discovery.cold_start import ColdStarts
from cluster.placement.types import Forecast
from tests.cluster.admission.queue_pools import Pools, end, enter, request
from tests.eventually import eventually


@pytest.fixture
def pools():
    return Pools(ColdStarts(("decode",), guess_s=1000.0))


@pytest.fixture
def queue(pools, placement):
    return AdmissionQueue(pools, placement, max_waiting=9)


def kept(queue):
    """How many promised retries that came are kept."""
    return queue.assigner.policy.returned


def promise(queue, tokens, key, alone_s):
    """Refuse such a request, and tell it to come at once."""
    now = time.monotonic()
    found = Forecast(0.1, now + 10, alone_s=alone_s)
    queue.assigner.policy.refuse("ttft", request(tokens, key=key), found, now)


@pytest.fixture
async def returned(queue):
    """One of key "a" that came when told to and must wait, behind five seconds of work."""
    promise(queue, 4800, "a", 0.1)
    first = (await queue.enter(request(5000)))[0]
    task = enter(queue, 4800, key="a")
    await eventually(lambda: queue.waiting == 1)
    assert kept(queue) == 1
    yield task
    await end(task)
    first.release()


async def test_who_came_and_went_away_leaves_nothing(queue, returned):
    returned.cancel()
    with pytest.raises(asyncio.CancelledError):
        await returned
    assert kept(queue) == 0 and queue.waiting == 0


async def test_who_came_to_a_pool_that_sleeps_leaves_nothing(queue, pools, returned):
    pools.records["decode"] = []
    with pytest.raises(Refused) as refused:
        await returned
    assert refused.value.reason == "starting"
    assert kept(queue) == 0


async def test_a_twin_that_is_decided_takes_nothing_of_one_that_waits(queue, returned):
    admitted = (await queue.enter(request(50, key="a", batch=True)))[0]
    with pytest.raises(Refused):
        await queue.enter(request(8000, key="a", budget_s=1.0))
    assert kept(queue) == 1 and not returned.done()
    admitted.release()


async def test_who_is_admitted_or_refused_uses_its_time_up(queue):
    for key in "ab":
        promise(queue, 50, key, 0.01)
    first = (await queue.enter(request(5000, key="a")))[0]
    assert kept(queue) == 0
    with pytest.raises(Refused):
        await queue.enter(request(8000, key="b", budget_s=1.0))
    assert kept(queue) == 0
    first.release()
