"""Who waits at the gate: in whose way, and behind whom."""

import asyncio

import pytest

from cluster.admission.waiting_queue import WaitingQueue
from cluster.admission.waiting_request import WaitingRequest
from cluster.placement.types import PlacementRequest
from engine.types.urgency import Urgency


def waiter(loop, *, arrival=0, left=10, expected=False, **ask):
    return WaitingRequest(
        PlacementRequest(10, 20, **ask), left, expected, arrival, loop.create_future()
    )


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def test_who_goes_first(loop):
    held = WaitingQueue(lambda tenant: 9.0 * (tenant == "had much"))
    order = [
        waiter(loop, expected=True, tenant="had much"),
        waiter(loop, left=10),
        waiter(loop, left=20, arrival=1),
        waiter(loop, left=20, arrival=2),
        waiter(loop, left=5, tenant="had much"),
        waiter(loop, left=9, arrival=3, batch=True),
        waiter(loop, left=1, arrival=4, batch=True),
    ]
    for one in reversed(order):
        one.alone_s = 1.0
        held.add(one)
    assert held.in_order() == order
    assert [held.ahead_s(one) for one in order] == [0, 1, 2, 3, 4, 5, 6]
    assert [held.any_before(one) for one in order] == [False] * 4 + [True] * 3
    order[1].decided.set_result([])
    held.drop_decided()
    held.remove(order[1])
    held.remove(order[2])
    assert held.in_order() == [order[0], *order[3:]]


def test_who_gives_way_to_a_newcomer(loop):
    held = WaitingQueue(lambda tenant: 0.0)
    waiting = [
        waiter(loop, arrival=1, left=90),
        waiter(loop, arrival=2, left=10),
        waiter(loop, arrival=3, left=99, expected=True),
        waiter(loop, arrival=4, tenant="other"),
        waiter(loop, arrival=5, batch=True),
        waiter(loop, arrival=6, batch=True),
    ]
    for one in waiting:
        held.add(one)
    assert held.gives_way(waiter(loop)) is waiting[5]
    assert held.gives_way(waiter(loop, batch=True)) is None
    assert held.gives_way(waiter(loop, batch=True, tenant="third")) is waiting[5]
    for one in waiting[4:]:
        held.remove(one)
    promised = waiter(loop, arrival=7, batch=True, expected=True)
    held.add(promised)
    assert held.gives_way(waiter(loop)) is promised
    assert held.gives_way(waiter(loop, batch=True, tenant="third")) is None
    held.remove(promised)
    assert held.gives_way(waiter(loop, batch=True)) is None
    assert held.gives_way(waiter(loop)) is None
    assert held.gives_way(waiter(loop, tenant="other")) is None
    assert held.gives_way(waiter(loop, tenant="third")) is waiting[0]


def test_whoever_waits_to_be_computed_presses(loop):
    held = WaitingQueue(lambda tenant: 0.0)
    for reason, batch in (("ttft", True), ("kv_blocks", False)):
        held.add(waiter(loop, batch=batch))
        held.in_order()[0].waits_for(reason)
    assert held.least_urgency is Urgency.PROMPTS
    last = waiter(loop)
    held.add(last)
    assert held.least_urgency is Urgency.PROMPTS
    last.waits_for("ttft")
    assert held.least_urgency is Urgency.PRESSED
    last.fits = False
    assert held.least_urgency is Urgency.URGENT
    last.decided.set_result([])
    assert held.least_urgency is Urgency.PROMPTS
