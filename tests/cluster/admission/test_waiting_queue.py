"""The waiting queue: which request goes first, and which one gives way."""

from functools import partial

import pytest

from cluster.admission.waiting_queue import WaitingQueue, WaitingRequest
from cluster.placement.types import PlacementRequest
from engine.errors import Overloaded
from engine.types.urgency import Urgency


def waiting(*, arrival=0, left=10, promised=False, **more):
    request = PlacementRequest(10, 20, **more)
    return WaitingRequest(request, left, promised, arrival, lambda: None)


def test_which_goes_first():
    queue = WaitingQueue(lambda tenant: 9.0 * (tenant == "had much"))
    order = [
        waiting(promised=True, tenant="had much"),
        waiting(left=10),
        waiting(left=20, arrival=1),
        waiting(left=20, arrival=2),
        waiting(left=5, tenant="had much"),
        waiting(left=9, arrival=3, batch=True),
        waiting(left=1, arrival=4, batch=True),
    ]
    for one in reversed(order):
        one.alone_s = 1.0
        queue.add(one)
    assert queue.in_order() == order
    assert [queue.ahead_s(one) for one in order] == [0, 1, 2, 3, 4, 5, 6]
    assert queue.alone_s == len(order)
    assert [queue.any_before(one) for one in order] == [False] * 4 + [True] * 3
    # A newcomer goes behind equals, by its tokens and the service of its tenant.
    assert queue.work_before("default", 9) == (1, 0) and queue.work_before("default", 10) == (2, 0)
    assert queue.work_before("had much", 99) == (5, 0)
    order[1].decide([])
    queue.drop_decided()
    queue.remove(order[1])
    queue.remove(order[2])
    assert queue.in_order() == [order[0], *order[3:]]


def test_which_gives_way_to_a_newcomer():
    queue = WaitingQueue(lambda tenant: 0.0)
    there = [
        waiting(arrival=1, left=90),
        waiting(arrival=2, left=10),
        waiting(arrival=3, left=99, promised=True),
        waiting(arrival=4, tenant="other"),
        waiting(arrival=5, batch=True),
        waiting(arrival=6, batch=True),
    ]
    for one in there:
        queue.add(one)
    assert queue.gives_way(waiting()) is there[5]
    assert queue.gives_way(waiting(batch=True)) is None
    assert queue.gives_way(waiting(batch=True, tenant="third")) is there[5]
    for one in there[4:]:
        queue.remove(one)
    promised = waiting(arrival=7, batch=True, promised=True)
    queue.add(promised)
    assert queue.gives_way(waiting()) is promised
    assert queue.gives_way(waiting(batch=True, tenant="third")) is None
    queue.remove(promised)
    assert queue.gives_way(waiting(batch=True)) is None
    assert queue.gives_way(waiting()) is None
    assert queue.gives_way(waiting(tenant="other")) is None
    assert queue.gives_way(waiting(tenant="third")) is there[0]


def test_requests_that_wait_for_computing_raise_the_urgency():
    queue = WaitingQueue(lambda tenant: 0.0)
    for reason, batch in (("ttft", True), ("kv_blocks", False)):
        one = waiting(batch=batch)
        one.waits_for(reason)
        queue.add(one)
    assert queue.least_urgency is Urgency.PROMPTS
    last = waiting()
    queue.add(last)
    assert queue.least_urgency is Urgency.PROMPTS
    last.waits_for("ttft")
    assert queue.least_urgency is Urgency.PRESSED
    last.feasible = False
    assert queue.least_urgency is Urgency.URGENT
    last.decide([])
    assert queue.least_urgency is Urgency.PROMPTS


def test_only_requests_that_wait_for_computing_delay_others():
    for reason, left_s in (("ttft", 2.0), ("kv_blocks", 0.0), ("tenant_kv", 0.0)):
        one = waiting()
        one.alone_s = 2.0
        one.waits_for(reason)
        assert one.alone_s == left_s
        assert one.capped is reason.startswith("tenant_")


def test_a_decided_request_wakes_its_client_and_has_the_outcome():
    woken = []
    request = PlacementRequest(10, 20)
    admitted, refused = (
        WaitingRequest(request, 10, False, number, partial(woken.append, number))
        for number in (1, 2)
    )
    admitted.decide([])
    refused.decide(Overloaded("no"))
    assert woken == [1, 2] and admitted.decided and refused.decided
    assert admitted.result() == []
    with pytest.raises(Overloaded):
        refused.result()
