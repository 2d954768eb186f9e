"""A claimed retry lasts while its request waits, and no longer."""

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


def claimed(queue):
    """The number of claimed retries that are not settled."""
    return sum(retry.claimed for retry in queue.assigner.policy._retries._retries)


def promise(queue, tokens, key, alone_s):
    """Refuse a request with this key, and promise it a retry at once."""
    now = time.monotonic()
    found = Forecast(0.1, now + 10, alone_s=alone_s)
    queue.assigner.policy.refuse("ttft", request(tokens, key=key), found, now)


@pytest.fixture
async def returned(queue):
    """A returned request of key "a" that waits behind five seconds of work."""
    promise(queue, 4800, "a", 0.1)
    first = (await queue.enter(request(5000)))[0]
    task = enter(queue, 4800, key="a")
    await eventually(lambda: queue.waiting == 1)
    assert claimed(queue) == 1
    yield task
    await end(task)
    first.release()


async def test_a_cancelled_request_settles_its_claimed_retry(queue, returned):
    returned.cancel()
    with pytest.raises(asyncio.CancelledError):
        await returned
    assert claimed(queue) == 0 and queue.waiting == 0


async def test_a_refusal_for_a_sleeping_pool_settles_the_claimed_retry(queue, pools, returned):
    pools.records["decode"] = []
    with pytest.raises(Refused) as refused:
        await returned
    assert refused.value.reason == "starting"
    assert claimed(queue) == 0


async def test_a_decided_request_of_the_same_key_leaves_the_claim_of_another(queue, returned):
    admitted = (await queue.enter(request(50, key="a", batch=True)))[0]
    with pytest.raises(Refused):
        await queue.enter(request(8000, key="a", budget_s=1.0))
    assert claimed(queue) == 1 and not returned.done()
    admitted.release()


async def test_an_admitted_or_refused_request_uses_its_promised_retry_up(queue):
    for key in "ab":
        promise(queue, 50, key, 0.01)
    first = (await queue.enter(request(5000, key="a")))[0]
    assert claimed(queue) == 0
    with pytest.raises(Refused):
        await queue.enter(request(8000, key="b", budget_s=1.0))
    assert claimed(queue) == 0
    first.release()
