"""Waiting requests are told their queue position and their predicted wait, and no other is."""

from __future__ import annotations

import pytest

from cluster.admission import queue_position
from cluster.admission.admission_queue import AdmissionQueue
from cluster.api import Progress
from tests.cluster.admission.queue_pools import end, enter, request
from tests.eventually import eventually


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(queue_position, "TELL_S", 0.01)


async def test_a_waiting_request_is_told_its_position_and_wait(pools, placement):
    queue = AdmissionQueue(pools, placement, max_waiting=3)
    placement.costs.learn_stream("d0", 3.0)
    first = (await queue.enter(request(14000, batch=True)))[0]
    told: list[list[Progress]] = [[], [], []]
    waiting = [enter(queue, 14000, batch=True, tell=one.append) for one in told[:2]]
    await eventually(lambda: len(told[0]) > 1 and len(told[1]) > 1)
    assert {one.position for one in told[0]} == {1}
    assert {one.position for one in told[1]} == {2}
    assert all(one.stage == "queued" and one.wait_s > 0 for one in told[0])
    assert told[1][0].wait_s > told[0][0].wait_s
    first.release()
    (await waiting[0])[0].release()
    last = (await waiting[1])[0]
    before = [len(one) for one in told[:2]]
    another = enter(queue, 14000, batch=True, tell=told[2].append)
    await eventually(lambda: len(told[2]) > 1)
    assert [len(one) for one in told[:2]] == before
    await end(another)
    last.release()


async def test_no_wait_is_made_up_before_a_request_has_ended(queue):
    first = (await queue.enter(request(14000, batch=True)))[0]
    told: list[Progress] = []
    waiting = enter(queue, 14000, batch=True, tell=told.append)
    await eventually(lambda: bool(told))
    assert told[0] == Progress(0, "queued", 0, 14000, 1, None)
    first.release()
    (await waiting)[0].release()


async def test_a_request_admitted_at_once_is_told_no_position(queue):
    told: list[Progress] = []
    (await queue.enter(request(100), told.append))[0].release()
    assert not told


async def test_a_mostly_cached_prompt_goes_before_a_shorter_one(pools, placement):
    queue = AdmissionQueue(pools, placement, max_waiting=9)
    running = (await queue.enter(request(5000)))[0]
    digests = [bytes([n]) * 8 for n in range(200)]
    placement.learn(pools.records["prefill"][0], digests)
    told: list[Progress] = []
    shorter = enter(queue, 1000, tell=told.append)
    cached = enter(queue, 3210, digests=digests, tell=told.append)
    await eventually(lambda: len({one.position for one in told}) == 2)
    assert {one.total_tokens: one.position for one in told[-2:]} == {3210: 1, 1000: 2}
    await end(shorter, cached)
    running.release()
