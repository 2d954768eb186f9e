"""The gate: admits, holds within its bound, refuses with a time, and forgets who has gone."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from cluster.admission import queue_position as places
from cluster.admission.admission_queue import AdmissionQueue
from cluster.admission.assignment import FirstTokenTiming
from cluster.admission.policy import Admission
from cluster.admission.refusals import Refused
from cluster.api import Progress
from cluster.placement.placement import Placement
from cluster.placement.types import PlacementRequest
from engine.errors import Unavailable
from engine.types.urgency import Urgency
from tests.cluster.admission.queue_pools import Pools, make_placement
from tests.cluster.scripted_generator import eventually


@pytest.fixture
def pools():
    return Pools()


@pytest.fixture
def placement():
    return make_placement()


@pytest.fixture
def gate(pools, placement):
    return AdmissionQueue(pools, placement, max_waiting=2)


def ask(tokens=5000, most=0, **more):
    values = {"arrived_s": time.monotonic(), "budget_s": 10.0, "key": object(), **more}
    return PlacementRequest(tokens, most or tokens + 10, **values)


async def test_what_cannot_be_in_time_is_refused_at_once_with_a_time(gate):
    await gate.enter(ask())
    before = time.monotonic()
    with pytest.raises(Refused) as refused:
        for _ in range(4):
            await gate.enter(ask(8000))
    assert refused.value.reason == "ttft"
    assert 0 < refused.value.retry_after_s < 50
    assert time.monotonic() - before < 5.0


async def test_a_near_miss_is_held_and_admitted_when_there_is_room(gate, placement):
    first = (await gate.enter(ask()))[0]
    held = asyncio.create_task(gate.enter(ask(4800)))
    await eventually(lambda: gate.held == 1)
    gate.computed(first, FirstTokenTiming(0.1, 0, 0.001, 0.2))
    placed = (await held)[0]
    assert gate.held == 0 and placed.plan.pair.prefill.id == "p0"
    placed.release()
    gate.release(first)
    assert placement.load_tracker.requests(placed.plan.pair.decode) == 0


class FirstDrawn:
    """Chance that draws the first ones."""

    def sample(self, records, count):
        return records[:count]


@pytest.mark.parametrize(("old", "used"), [((), 3), (("p2", "d2"), 2)])
async def test_of_replicas_whose_state_is_old_two_are_drawn(pools, old, used):
    for pool, records in pools.records.items():
        pools.records[pool] = [replace(records[0], id=f"{pool[0]}{n}") for n in range(3)]
    pools.old = set(old)
    gate = AdmissionQueue(pools, Placement(chance=FirstDrawn()), max_waiting=2)
    placed = [(await gate.enter(ask(100)))[0] for _ in range(6)]
    assert {one.plan.pair.prefill.id for one in placed} == {f"p{n}" for n in range(used)}
    assert {one.plan.pair.decode.id for one in placed} == {f"d{n}" for n in range(used)}
    for one in placed:
        one.release()


async def test_a_prompt_that_waits_is_pressed(gate):
    first = (await gate.enter(ask(400, budget_s=1.0)))[0]
    (placed,) = await gate.enter(ask(100, budget_s=1.0))
    assert first.plan.forecast.urgency is Urgency.NONE
    assert placed.plan.forecast.urgency is Urgency.PRESSED
    assert (first.urgency, placed.urgency) == (Urgency.PROMPTS, Urgency.PRESSED)
    placed.release()
    first.release()


async def test_what_is_placed_while_another_has_no_room_to_be_in_time_is_urgent(gate):
    first = (await gate.enter(ask()))[0]
    held = asyncio.create_task(gate.enter(ask(4800)))
    await eventually(lambda: gate.held == 1)
    (placed,) = await gate.enter(ask(100))
    assert (first.urgency, placed.urgency) == (Urgency.PROMPTS, Urgency.URGENT)
    placed.release()
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    (after,) = await gate.enter(ask(100))
    assert after.urgency is Urgency.PROMPTS
    for one in (first, after):
        one.release()


async def test_more_than_can_be_computed_is_urgent(gate):
    """Of work that came lately, though nobody waits for it in the router."""
    (stream,) = await gate.enter(ask(10))
    stream.prefilled()
    hastes = []
    for _ in range(8):
        (placed,) = await gate.enter(ask())
        hastes.append(placed.urgency)
        placed.release()
    assert hastes[0] is Urgency.PROMPTS
    assert hastes[-1] is Urgency.URGENT
    stream.release()


async def test_as_much_with_time_for_it_is_not_urgent(gate):
    (stream,) = await gate.enter(ask(10))
    stream.prefilled()
    for _ in range(8):
        (placed,) = await gate.enter(ask(budget_s=600.0))
        assert placed.urgency is Urgency.PROMPTS
        placed.release()
    stream.release()


async def test_a_choice_that_was_moved_says_nothing_of_predictions(gate, monkeypatch):
    learned = []
    monkeypatch.setattr(Admission, "learn", lambda admission, late, budget_s: learned.append(late))
    first = FirstTokenTiming(0.01, 0, 0.001, 0.02)
    for moved in (False, True):
        (placed,) = await gate.enter(ask(50))
        if moved:
            placed.vacate()
            gate.move(placed, placed.ask, streaming=False)
        gate.computed(placed, first)
        gate.release(placed)
    assert learned == [False]


async def test_who_is_held_in_vain_is_told_when_it_was_decided(gate):
    """No sooner than it must be: until then there could have been room."""
    first = (await gate.enter(ask()))[0]
    with pytest.raises(Refused) as refused:
        await gate.enter(ask(50, most=15500, budget_s=0.4))
    assert refused.value.reason == "kv_blocks"
    assert refused.value.decided_s > 0.179
    first.release()


async def test_who_has_gone_holds_nothing(gate, placement, pools):
    first = (await gate.enter(ask()))[0]
    held = asyncio.create_task(gate.enter(ask(4800)))
    await eventually(lambda: gate.held == 1)
    held.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held
    assert gate.held == 0
    first.release()
    assert placement.load_tracker.requests(pools.records["decode"][0]) == 0


async def test_batch_work_waits_for_blocks_in_its_order_within_the_bound(gate):
    first = (await gate.enter(ask(14000, batch=True)))[0]
    waiting = [asyncio.create_task(gate.enter(ask(14000, batch=True))) for _ in range(2)]
    await eventually(lambda: gate.held == 2)
    with pytest.raises(Refused) as refused:
        await gate.enter(ask(14000, batch=True))
    assert refused.value.reason == "queue_full"
    first.release()
    await eventually(waiting[0].done)
    assert not waiting[1].done() and gate.held == 1
    waiting[0].result()[0].release()
    (await waiting[1])[0].release()


async def test_whoever_is_behind_a_crowd_is_decided_in_time_all_the_same(pools, placement):
    gate = AdmissionQueue(pools, placement, max_waiting=99)
    light = (await gate.enter(ask(10, tenant="light")))[0]
    heavy = (await gate.enter(ask(11000, batch=True, tenant="heavy")))[0]
    crowd = [
        asyncio.create_task(gate.enter(ask(100, most=9000, tenant="light", budget_s=600.0)))
        for _ in range(40)
    ]
    await eventually(lambda: gate.held == 40)
    with pytest.raises(Refused) as refused:
        hopeless = gate.enter(ask(100, most=9000, tenant="heavy", budget_s=0.4))
        await asyncio.wait_for(hopeless, 20)
    assert refused.value.reason == "kv_blocks"
    for task in crowd:
        task.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)
    light.release()
    heavy.release()


async def test_every_choice_is_counted_by_itself(gate, placement, pools):
    placed = await gate.enter(ask(50, choices=3))
    assert len(placed) == 3
    assert placement.load_tracker.requests(pools.records["decode"][0]) == 3
    for one in placed:
        gate.release(one)
    assert placement.load_tracker.requests(pools.records["decode"][0]) == 0


async def test_no_replica_is_said_at_once_and_while_waiting(gate, pools):
    first = (await gate.enter(ask()))[0]
    held = asyncio.create_task(gate.enter(ask(4800)))
    await eventually(lambda: gate.held == 1)
    pools.records["decode"] = []
    with pytest.raises(Unavailable):
        await held
    with pytest.raises(Unavailable):
        await gate.enter(ask())
    first.release()


async def test_who_waits_hears_where_and_for_how_long(gate, placement, monkeypatch):
    monkeypatch.setattr(places, "TELL_S", 0.01)
    placement.costs.learn_stream("d0", 3.0)
    first = (await gate.enter(ask(14000, batch=True)))[0]
    heard: list[list[Progress]] = [[], []]
    waiting = [
        asyncio.create_task(gate.enter(ask(14000, batch=True), heard[0].append)),
        asyncio.create_task(gate.enter(ask(14000, batch=True), heard[1].append)),
    ]
    await eventually(lambda: len(heard[0]) > 1 and len(heard[1]) > 1)
    assert {told.position for told in heard[0]} == {1}
    assert {told.position for told in heard[1]} == {2}
    assert all(told.stage == "queued" and told.wait_s > 0 for told in heard[0])
    assert heard[1][0].wait_s > heard[0][0].wait_s
    first.release()
    (await waiting[0])[0].release()
    (await waiting[1])[0].release()
    said = [len(one) for one in heard]
    await asyncio.sleep(0.06)
    assert [len(one) for one in heard] == said


async def test_a_guess_that_was_wrong_widens_no_margin(pools, placement):
    """Only what was predicted from observations says how far off predictions are."""
    guessing = Placement()
    for known, kept in ((guessing, 0.08), (placement, 0.147)):
        gate = AdmissionQueue(pools, known, max_waiting=2)
        placed = (await gate.enter(ask(100, budget_s=0.2)))[0]
        assert placed.plan.forecast.learned is (known is placement)
        await asyncio.sleep(0.21)
        for _ in range(3):
            gate.computed(placed, FirstTokenTiming(0.2, 0, 0.0, 0.21))
        placed.release()
        assert gate._admission.margin_s(0.2) == pytest.approx(0.2 * kept, abs=0.001)


async def test_no_wait_is_made_up_before_a_request_has_ended(gate, monkeypatch):
    monkeypatch.setattr(places, "TELL_S", 0.01)
    first = (await gate.enter(ask(14000, batch=True)))[0]
    heard: list[Progress] = []
    waiting = asyncio.create_task(gate.enter(ask(14000, batch=True), heard.append))
    await eventually(lambda: bool(heard))
    assert heard[0] == Progress(0, "queued", 0, 14000, 1, None)
    first.release()
    (await waiting)[0].release()


async def test_who_is_admitted_at_once_hears_nothing(gate):
    heard: list[Progress] = []
    (await gate.enter(ask(100), heard.append))[0].release()
    assert not heard


async def test_a_prompt_that_decode_has_cached_waits_for_no_one_at_prefill(pools, placement):
    """It is computed elsewhere than those that are held."""
    placement = Placement(256, 64, costs=placement.costs)
    gate = AdmissionQueue(pools, placement, max_waiting=9)
    running = (await gate.enter(ask(5000)))[0]
    held = asyncio.create_task(gate.enter(ask(4000)))
    await eventually(lambda: gate.held == 1)
    digests = [bytes([n]) * 8 for n in range(200)]
    placement.learn(pools.records["decode"][0], digests)
    async with asyncio.timeout(2):
        local = (await gate.enter(ask(3210, digests=digests)))[0]
    assert local.plan.pair.local
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    running.release()
    local.release()


async def test_whose_prompt_is_mostly_cached_goes_before_a_shorter_one(
    pools, placement, monkeypatch
):
    monkeypatch.setattr(places, "TELL_S", 0.01)
    gate = AdmissionQueue(pools, placement, max_waiting=9)
    running = (await gate.enter(ask(5000)))[0]
    digests = [bytes([n]) * 8 for n in range(200)]
    placement.learn(pools.records["prefill"][0], digests)
    heard: list[Progress] = []
    shorter = asyncio.create_task(gate.enter(ask(1000), heard.append))
    cached = asyncio.create_task(gate.enter(ask(3210, digests=digests), heard.append))
    await eventually(lambda: len({told.position for told in heard}) == 2)
    assert {told.total_tokens: told.position for told in heard[-2:]} == {3210: 1, 1000: 2}
    for task in (shorter, cached):
        task.cancel()
    await asyncio.gather(shorter, cached, return_exceptions=True)
    running.release()


async def test_what_fits_is_admitted_where_there_is_no_place_to_wait(pools, placement):
    gate = AdmissionQueue(pools, placement, max_waiting=0)
    first = (await gate.enter(ask(5000)))[0]
    second = (await gate.enter(ask(500)))[0]
    assert second.plan.forecast.feasible
    first.release()
    second.release()


async def test_the_wait_is_told_whole_wherever_prompts_wait(gate, pools, placement):
    """Of six seconds of prompts what is not on the replica is held, and every second is told."""
    gate = AdmissionQueue(pools, placement, max_waiting=9)
    first = (await gate.enter(ask(1000, budget_s=20.0)))[0]
    held = [asyncio.create_task(gate.enter(ask(1000, budget_s=20.0))) for _ in range(5)]
    await eventually(lambda: gate.held > 0)
    for _ in range(3):
        placed = 1 + sum(task.done() for task in held)
        assert gate.held == 6 - placed
        assert gate.held_s + placement.queue_s("p0", time.monotonic()) == pytest.approx(
            6.0, rel=0.1
        )
        await asyncio.sleep(0.05)
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    assert gate.held_s == 0
    first.release()


async def test_a_backlog_of_the_batch_lane_is_told_by_itself(gate):
    """It waits for blocks; of the other lanes nobody waits for a pool."""
    first = (await gate.enter(ask(14000, batch=True)))[0]
    waiting = [asyncio.create_task(gate.enter(ask(14000, batch=True))) for _ in range(2)]
    await eventually(lambda: gate.held == 2)
    later = time.monotonic() + 2.0
    assert gate.unmet_batch(later) == 1  # the first in its line, which is looked at
    assert not gate.unmet(later)
    assert gate.held_s == 0
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    first.release()
