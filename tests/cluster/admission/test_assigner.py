"""The assigner: which replicas, in which urgency, counted how, and what it learns from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.admission.admission_queue import AdmissionQueue
from cluster.admission.assignment import FirstTokenTiming
from cluster.placement.placement import Placement
from engine.types.urgency import Urgency
from tests.cluster.admission.queue_pools import Clock, end, enter, request
from tests.eventually import eventually

FIRST = FirstTokenTiming(0.01, 0, 0.001, 0.02)


class FirstDrawn:
    """Chance that draws the first ones."""

    def sample(self, records, count):
        return records[:count]


@pytest.mark.parametrize(("old", "used"), [((), 3), (("p2", "d2"), 2)])
async def test_of_replicas_whose_state_is_old_two_are_drawn(pools, old, used):
    for pool, records in pools.records.items():
        pools.records[pool] = [replace(records[0], id=f"{pool[0]}{n}") for n in range(3)]
    pools.old = set(old)
    queue = AdmissionQueue(pools, Placement(chance=FirstDrawn()), max_waiting=2)
    assigned = [(await queue.enter(request(100)))[0] for _ in range(6)]
    assert {one.plan.pair.prefill.id for one in assigned} == {f"p{n}" for n in range(used)}
    assert {one.plan.pair.decode.id for one in assigned} == {f"d{n}" for n in range(used)}
    for one in assigned:
        one.release()


async def test_a_prompt_that_waits_is_pressed(queue):
    first = (await queue.enter(request(400, budget_s=1.0)))[0]
    (assigned,) = await queue.enter(request(100, budget_s=1.0))
    assert first.plan.forecast.urgency is Urgency.NONE
    assert assigned.plan.forecast.urgency is Urgency.PRESSED
    assert (first.urgency, assigned.urgency) == (Urgency.PROMPTS, Urgency.PRESSED)
    assigned.release()
    first.release()


async def test_what_is_assigned_while_another_cannot_be_in_time_is_urgent(queue):
    first = (await queue.enter(request()))[0]
    waiting = enter(queue, 4800)
    await eventually(lambda: queue.waiting == 1)
    (assigned,) = await queue.enter(request(100))
    assert (first.urgency, assigned.urgency) == (Urgency.PROMPTS, Urgency.URGENT)
    assigned.release()
    await end(waiting)
    (after,) = await queue.enter(request(100))
    assert after.urgency is Urgency.PROMPTS
    for one in (first, after):
        one.release()


async def test_more_than_can_be_computed_is_urgent(queue):
    """Work that arrived lately counts, though no request waits for it in the router."""
    (stream,) = await queue.enter(request(10))
    stream.prefilled()
    urgencies = []
    for _ in range(8):
        (assigned,) = await queue.enter(request())
        urgencies.append(assigned.urgency)
        assigned.release()
    assert urgencies[0] is Urgency.PROMPTS
    assert urgencies[-1] is Urgency.URGENT
    stream.release()


async def test_as_much_with_time_for_it_is_not_urgent(queue):
    (stream,) = await queue.enter(request(10))
    stream.prefilled()
    for _ in range(8):
        (assigned,) = await queue.enter(request(budget_s=600.0))
        assert assigned.urgency is Urgency.PROMPTS
        assigned.release()
    stream.release()


async def test_every_choice_is_counted_by_itself(queue, placement, pools):
    assigned = await queue.enter(request(50, choices=3))
    assert len(assigned) == 3
    assert placement.load_tracker.requests(pools.records["decode"][0]) == 3
    for one in assigned:
        queue.assigner.release(one)
    assert placement.load_tracker.requests(pools.records["decode"][0]) == 0


async def late_margin_s(pools, placement, *, failed_over=False):
    """How far late first tokens of a request with a budget of 0.2 s have widened the margin."""
    clock = Clock()
    queue = AdmissionQueue(pools, placement, max_waiting=2, clock=clock)
    before_s = queue.assigner.policy.margin_s(0.2)
    (assigned,) = await queue.enter(request(100, budget_s=0.2, arrived_s=clock.now))
    if failed_over:
        assigned.release_load()
        queue.assigner.reassigner.reassign(assigned, assigned.request, streaming=False)
    clock.now += 0.3
    for _ in range(3):
        queue.computed(assigned, FIRST)
    assigned.release()
    return queue.assigner.policy.margin_s(0.2) - before_s


async def test_late_tokens_widen_the_margin(pools, placement):
    assert await late_margin_s(pools, placement) > 0


async def test_a_guess_that_was_wrong_widens_no_margin(pools):
    """Only what was predicted from observations says how far off predictions are."""
    assert await late_margin_s(pools, Placement()) == 0


async def test_a_choice_that_failed_over_says_nothing_of_predictions(pools, placement):
    assert await late_margin_s(pools, placement, failed_over=True) == 0
