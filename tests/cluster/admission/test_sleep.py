"""Requests for pools that sleep: some wait for the start, and others get a retry time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from cluster.admission import queue_position
from cluster.admission.admission_queue import AdmissionQueue
from cluster.admission.offered_load import OfferedLoad
from cluster.admission.refusals import Refused
from cluster.discovery.cold_start import ColdStarts
from cluster.placement.placement import Placement
from engine.errors import Unavailable
from tests.cluster.admission.queue_pools import Pools, enter, request
from tests.eventually import eventually


@pytest.fixture
def asleep():
    """No replica is there in either pool; a start is predicted to take 30 s."""
    pools = Pools()
    pools.records = {"prefill": [], "decode": []}
    pools.starts = ColdStarts(["prefill", "decode"], 30)
    return pools


@pytest.fixture
def queue(asleep):
    return AdmissionQueue(asleep, Placement(), max_waiting=4)


async def test_a_replica_that_is_back_is_told_from_a_new_one(queue, asleep) -> None:
    records = Pools().records
    asleep.records = records
    queue.unserved(time.monotonic())
    for known, learned in ((True, False), (False, True)):
        asleep.records = {"prefill": [], "decode": []}
        with pytest.raises(Refused):
            await queue.enter(request(100, budget_s=10.0))
        new = {pool: [replace(one, generation=9) for one in all_] for pool, all_ in records.items()}
        asleep.records = records if known else new
        queue.unserved(time.monotonic())
        assert (asleep.starts.usual_s("decode") < 30) is learned


async def test_batch_work_waits_for_a_start_and_is_told_so(queue, asleep, monkeypatch) -> None:
    monkeypatch.setattr(queue_position, "TELL_S", 0.0)
    told = []
    waiting = enter(queue, 100, batch=True, tell=told.append)
    await eventually(lambda: told)
    assert (told[0].stage, told[0].position) == ("starting", 1)
    assert 25 < told[0].wait_s <= 30
    assert queue.unserved(time.monotonic()) == {"prefill": 1, "decode": 1}
    asleep.records = Pools().records
    (assigned,) = await asyncio.wait_for(waiting, 5)
    assigned.release()
    assert queue.unserved(time.monotonic()) == {}
    assert asleep.starts.usual_s("decode") < 5


async def test_requests_that_wait_for_a_start_are_offered_load_when_it_is_over(
    queue, asleep, monkeypatch
) -> None:
    came = []
    monkeypatch.setattr(OfferedLoad, "add", lambda offered, work_s, *of: came.append(work_s))
    waiting = enter(queue, 100, budget_s=1000.0)
    await eventually(lambda: queue.waiting == 1)
    assert (came, queue.queued_prefill_s) == ([], 0.0)
    asleep.records = Pools().records
    (assigned,) = await asyncio.wait_for(waiting, 5)
    assigned.release()
    assert len(came) == 1 and came[0] > 0


async def test_a_request_that_may_not_wait_for_a_start_gets_a_retry_time(queue, asleep) -> None:
    with pytest.raises(Refused) as refused:
        await queue.enter(request(100, budget_s=10.0))
    assert refused.value.reason == "starting"
    assert 25 < refused.value.retry_after_s <= 30
    # The pool is started for refused requests, too.
    assert queue.unserved(time.monotonic()) == {"prefill": 1, "decode": 1}


async def test_a_patient_endpoint_waits_within_its_time_and_no_longer(queue, asleep) -> None:
    asleep.starts = ColdStarts(["prefill", "decode"], 0.2)
    began_s = time.monotonic()
    with pytest.raises(Refused) as refused:
        await asyncio.wait_for(queue.enter(request(100, budget_s=1.0)), 20)
    assert time.monotonic() - began_s >= 0.4
    assert refused.value.reason == "starting"
    assert refused.value.retry_after_s > 0


async def test_a_pool_that_may_not_sleep_is_missing_and_not_asleep(queue, asleep) -> None:
    asleep.starts = ColdStarts(["decode"], 30)
    with pytest.raises(Unavailable):
        await queue.enter(request(100, batch=True))


async def test_scoring_needs_no_decode_replica(queue, asleep) -> None:
    asleep.records["prefill"] = Pools().records["prefill"]
    (assigned,) = await queue.enter(request(100, scored_from=1))
    assigned.release()
