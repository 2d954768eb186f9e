"""What a request waited for in the router's queue: its own reason, or that of those before it."""

from __future__ import annotations

import asyncio

import pytest

from cluster.admission.admission_queue import AdmissionQueue
from cluster.admission.assignment import QueueWait
from cluster.replica_record import ReplicaLoad, ReplicaRecord
from tests.cluster.admission.queue_pools import end, enter, make_placement, request
from tests.eventually import eventually


@pytest.fixture
def queue(pools):
    return AdmissionQueue(pools, make_placement(), max_waiting=9)


def enter_with(queue, wait, *given, **more):
    """A task that enters the queue, whose wait is noted in `wait`."""
    return asyncio.create_task(queue.enter(request(*given, **more), None, wait))


async def test_each_request_of_a_crowd_says_for_what_it_waited_and_how_many_were_before_it(queue):
    """Each takes nearly all blocks: one runs, and the router decides about the next alone."""
    waits = [QueueWait() for _ in range(5)]
    tasks = []
    for number, wait in enumerate(waits):
        tasks.append(enter_with(queue, wait, 14000, batch=True))
        await eventually(lambda number=number: queue.waiting == number)
    # While they wait it is known too.
    for wait in waits:
        wait.look()
    assert [wait.reason for wait in waits[1:]] == ["kv_blocks"] * 4
    for task in tasks:
        (assigned,) = await task
        assigned.release()
    assert waits[0] == QueueWait()
    assert [(wait.reason, wait.queued_before) for wait in waits[1:]] == [
        ("kv_blocks", before) for before in range(4)
    ]
    assert all(wait.seconds > 0 for wait in waits[1:])
    assert waits[1].stood_behind is False


async def test_a_request_whose_turn_never_came_stood_behind_what_held_the_others_back(queue):
    """There would have been blocks for it, but not for the one before it."""
    first = (await queue.enter(request(8000, batch=True)))[0]
    before = enter(queue, 8000, batch=True)
    await eventually(lambda: queue.waiting == 1)
    wait = QueueWait()
    behind = enter_with(queue, wait, 100, batch=True)
    await eventually(lambda: queue.waiting == 2)
    await end(before)
    (assigned,) = await behind
    assert (wait.reason, wait.stood_behind, wait.queued_before) == ("kv_blocks", True, 1)
    assigned.release()
    first.release()


def reasons(waits):
    for wait in waits:
        wait.look()
    return [wait.reason for wait in waits]


async def test_the_reason_is_the_one_for_which_the_requests_before_it_waited_last(pools, queue):
    def decode(**load: int) -> None:
        load = ReplicaLoad(**{"blocks_total": 1000, "block_size": 16, **load})
        pools.records["decode"] = [ReplicaRecord("d0", "decode", "", 1, load=load)]

    first = (await queue.enter(request(100)))[0]
    waits = QueueWait(), QueueWait()
    decode(batch_limit=1)
    before = enter_with(queue, waits[0], 100, batch=True)
    await eventually(lambda: queue.waiting == 1)
    behind = enter_with(queue, waits[1], 100, batch=True)
    await eventually(lambda: queue.waiting == 2)
    assert reasons(waits) == ["decode_batch"] * 2
    decode(blocks_total=10)
    # Who looks while they wait hears the reason of now, and not that of their arrival.
    await eventually(lambda: reasons(waits) == ["kv_blocks"] * 2)
    decode()
    assigned = [(await task)[0] for task in (before, behind)]
    assert [(wait.reason, wait.stood_behind) for wait in waits] == [
        ("kv_blocks", False),
        ("kv_blocks", True),
    ]
    for one in (first, *assigned):
        one.release()


async def test_a_request_that_did_not_queue_waited_for_nothing(queue):
    wait = QueueWait()
    (assigned,) = await queue.enter(request(), None, wait)
    assert wait == QueueWait()
    assigned.release()
