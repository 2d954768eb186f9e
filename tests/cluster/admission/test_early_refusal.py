"""A request that arrives behind too much work is refused at once, and no other one is."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.admission.admission_queue import AdmissionQueue
from cluster.admission.early_refusal import ArrivingRequest, SizeEstimate, WorkAhead
from cluster.admission.policy import Admission, decided_by
from cluster.admission.refusals import Refused
from cluster.placement.types import Forecast
from tests.cluster.admission.queue_pools import end, enter, request
from tests.eventually import eventually

ARRIVAL = ArrivingRequest(size=100, arrived_s=10.0, budget_s=1.0, key="a", tenant="default")
SECONDS = st.floats(0, 3)


def arrival(**more):
    return replace(ARRIVAL, arrived_s=time.monotonic(), **more)


# A request that was read later than this waits behind no other request.
READ_LATE_S = 0.5 * (decided_by(ARRIVAL) - ARRIVAL.arrived_s)


@given(SECONDS, SECONDS, SECONDS, SECONDS)
def test_a_request_that_could_be_in_time_is_refused_only_if_it_was_read_late(
    placed_s, waiting_s, alone_s, waited_s
):
    ahead = WorkAhead(placed_s, waiting_s, 0.0, alone_s)
    refused = Admission().refuse_early(ARRIVAL, ahead, 10.0 + waited_s)
    # A prompt that takes longer than its budget is due later, as in placement.
    due_s = max(1.0, 1.2 * alone_s)
    read_late = waiting_s > 0 and waited_s > READ_LATE_S
    if waited_s + placed_s + waiting_s + alone_s <= due_s:
        assert (refused is not None) == read_late
    if waited_s + placed_s + waiting_s > max(1.0, 1.25 * alone_s):
        assert refused is not None and refused.reason == "ttft"
        assert refused.retry_after_s >= placed_s - 1e-6


@pytest.mark.parametrize("ahead", [WorkAhead(waiting_s=0.1), WorkAhead(slots_s=0.1)])
def test_a_request_that_was_read_late_does_not_wait_behind_others(ahead):
    policy, late_s = Admission(), 10.0 + READ_LATE_S
    assert policy.refuse_early(ARRIVAL, ahead, late_s - 0.01) is None
    assert policy.refuse_early(ARRIVAL, ahead, late_s + 0.01).retry_after_s > 0
    assert policy.refuse_early(ARRIVAL, WorkAhead(placed_s=0.1), late_s + 0.01) is None


@given(st.floats(0.001, 3), SECONDS)
def test_behind_requests_for_slots_the_verdict_is_early_only_if_none_comes_in_time(slots_s, at_s):
    ahead, now = WorkAhead(slots_s=slots_s, interval_s=0.2), 10.0 + at_s / 10
    refused = Admission().refuse_early(ARRIVAL, ahead, now)
    none_in_time = now + slots_s > decided_by(ARRIVAL)
    assert (refused is not None) == (none_in_time or now - 10.0 > READ_LATE_S)
    if none_in_time:
        assert refused.reason == "decode_batch" and refused.retry_after_s > 0.199


def test_a_promised_retry_and_the_batch_lane_are_never_refused_early():
    policy, ahead = Admission(), WorkAhead(placed_s=5.0)
    assert policy.refuse_early(replace(ARRIVAL, batch=True), ahead, 10.0) is None
    told = policy.refuse_early(ARRIVAL, ahead, 10.0)
    at_s = 10.0 + told.retry_after_s
    assert policy.refuse_early(ARRIVAL, ahead, at_s - 1.0).retry_after_s == pytest.approx(1.0)
    assert policy.refuse_early(replace(ARRIVAL, arrived_s=at_s), ahead, at_s) is None


def test_the_size_of_a_text_tells_its_tokens_and_their_seconds():
    sizes, known = SizeEstimate(), request(50, size=200)
    assert sizes.tokens(1000) == 0 and sizes.ahead(1000, 0.0, 0.0, 5.0) == WorkAhead()
    forecast = Forecast(0.5, 9.0, alone_s=0.5, work_s=2.0, interval_s=0.1)
    sizes.learn(known, 50, forecast, 5.0, own=False)
    assert sizes.tokens(1000) == 250
    assert sizes.ahead(1000, 1.0, 0.0, 5.25) == WorkAhead(1.75, 1.0, 0.0, 2.5, 0.1)
    # What a plan said a while ago says nothing.
    assert sizes.ahead(1000, 1.0, 0.0, 9.0).placed_s == 0.0
    # A device of its own says nothing of the shared ones.
    sizes.learn(known, 50, replace(forecast, work_s=9.0), 5.3, own=True)
    assert sizes.ahead(1000, 0.0, 0.0, 5.3).placed_s == pytest.approx(1.7)


async def test_a_queue_refuses_early_behind_placed_and_waiting_work(pools, placement):
    queue = AdmissionQueue(pools, placement, max_waiting=99)
    queue.refuse_early(arrival(budget_s=2.0))
    first = (await queue.enter(request(5000, size=5000)))[0]
    waiting = enter(queue, 4000, size=4000)
    await eventually(lambda: queue.waiting == 1)
    with pytest.raises(Refused, match="first token would be late") as refused:
        queue.refuse_early(arrival(budget_s=2.0))
    assert refused.value.retry_after_s > 3.0 and refused.value.decided_s < 1.0
    queue.refuse_early(arrival(budget_s=20.0))
    # A shorter prompt goes before the one that waits, a longer one behind it.
    queue.refuse_early(arrival(budget_s=7.0, size=10))
    with pytest.raises(Refused):
        queue.refuse_early(arrival(budget_s=7.0, size=4500))
    assert queue.waiting == 1
    await end(waiting)
    first.release()


async def test_a_request_behind_others_is_not_planned_at_every_poll(pools, placement):
    queue, planned = AdmissionQueue(pools, placement, max_waiting=99), []
    first = (await queue.enter(request(5000)))[0]
    tasks = [enter(queue, 4000 + number) for number in range(20)]
    await eventually(lambda: queue.waiting == 20)
    plan = placement.plan
    placement.plan = lambda *given, **more: (
        planned.append(given[2].request_id) or plan(*given, **more)
    )
    for _ in range(3):
        queue._poll()
    # Only the first one is planned anew, and the others when their plans are old.
    assert len(planned) <= 3 + 20
    await end(*tasks)
    first.release()
