"""Pools that go to zero and come back: the controller, the estimates, and who waits meanwhile."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.admission import queue_position as places
from cluster.admission.admission_queue import AdmissionQueue
from cluster.admission.offered_load import OfferedLoad
from cluster.admission.refusals import Refused
from cluster.autoscaling.controller import PoolController, Resize
from cluster.autoscaling.load_signals import LoadLimits
from cluster.config.autoscaling import PoolBounds, ScalingConfig
from cluster.config.schema import TandemConfig
from cluster.discovery.cold_start import ColdStarts
from cluster.placement.placement import Placement
from engine.errors import Unavailable
from prefill_pool.config import PrefillConfig
from tests.cluster.admission.test_admission_queue import Pools, ask
from tests.cluster.autoscaling.test_pool_sizes import pools, resized, router
from tests.cluster.scripted_generator import eventually

SLEEPS = ScalingConfig(prefill=PoolBounds(0, 2), decode=PoolBounds(0, 2), idle_s=60)


def test_an_idle_pool_sleeps_after_a_while_one_after_the_other() -> None:
    controller = PoolController(SLEEPS, LoadLimits())
    assert resized(pools(), 59, controller) == []
    slept = resized(pools(), 60, controller, 59.5)
    assert slept == [("prefill", 0, 0.5), ("decode", 0, 5.5)]
    assert controller.wanted == {"prefill": 0, "decode": 0}
    assert resized([], 600, controller, 120) == []
    assert controller.missing == []


@pytest.mark.parametrize(
    "members",
    [
        pools(used=1),
        [*pools(), router(unmet_decode=1)],
        [*pools(), router(waiting=1)],
        pools(decode=2, used=5),
    ],
)
def test_no_pool_sleeps_that_has_work(members) -> None:
    config = replace(SLEEPS, prefill=PoolBounds(1, 1), decode=PoolBounds(0, 2), spare_s=1e9)
    changes = resized(members, 600, PoolController(config, LoadLimits()))
    assert ("decode", 0) not in [(pool, count) for pool, count, _ in changes]


def test_a_pool_whose_least_is_one_never_sleeps() -> None:
    config = ScalingConfig(prefill=PoolBounds(1, 2), decode=PoolBounds(1, 2), idle_s=1)
    assert resized(pools(), 600, PoolController(config, LoadLimits())) == []


def test_a_request_wakes_what_it_needs_at_once_and_once() -> None:
    controller = PoolController(SLEEPS, LoadLimits(), {"prefill": 0, "decode": 0})
    nobody = [router(unmet_prefill=1, unmet_decode=1)]
    assert resized(nobody, 60, controller) == [("prefill", 1, 0.0), ("decode", 1, 0.5)]
    assert set(controller.missing) == {"prefill", "decode"}
    assert resized([*pools(), *nobody], 0, controller, 61) == []
    assert controller.missing == []


def test_a_new_keeper_wakes_what_it_knows_nothing_of() -> None:
    """Replicas that are about to come for the first time are not sent away."""
    controller = PoolController(SLEEPS, LoadLimits())
    assert resized([], 600, controller) == []
    assert controller.wanted == {}
    assert resized([router(unmet_decode=1)], 0, controller, 601) == [("decode", 1, 0.0)]


class Sleeping(RuleBasedStateMachine):
    """Work comes and goes; replicas come and go as they are wanted."""

    def __init__(self):
        super().__init__()
        self.controller = PoolController(SLEEPS, LoadLimits())
        self.now, self.have, self.used, self.unmet = 0.0, {"prefill": 1, "decode": 1}, 0, False

    def members(self):
        waiting = {"unmet_prefill": self.have["prefill"] == 0 and self.unmet}
        waiting["unmet_decode"] = self.have["decode"] == 0 and self.unmet
        there = pools(self.have["prefill"], self.have["decode"], used=self.used)
        return [*there, router(**{name: int(count) for name, count in waiting.items()})]

    @rule(seconds=st.integers(1, 80), used=st.integers(0, 50))
    def works(self, seconds, used):
        self.used = used if all(self.have.values()) else 0
        self._watch(seconds)

    @rule(seconds=st.integers(2, 30))
    def somebody_waits(self, seconds):
        self.unmet = True
        self._watch(seconds)
        # Whatever was asleep is wanted by the second look.
        asleep = [pool for pool, count in self.have.items() if not count]
        assert all(self.controller.wanted[pool] >= 1 for pool in asleep)
        self.unmet = False

    @rule()
    def as_wanted(self):
        self.have |= self.controller.wanted

    def _watch(self, seconds):
        for _ in range(seconds * 2):
            self.now += 0.5
            change = self.controller.decide(self.members(), self.now)
            if isinstance(change, Resize) and change.replicas == 0:
                assert self.used == 0 or change.pool == "prefill"
                assert change.reason

    @invariant()
    def within_bounds(self):
        assert all(0 <= count <= 2 for count in self.controller.wanted.values())


TestSleeping = Sleeping.TestCase
# A step is many looks, each slow where coverage is measured.
TestSleeping.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)


def test_a_start_is_measured_and_the_next_one_predicted() -> None:
    starts = ColdStarts(["decode"], guess_s=30)
    assert starts.left_s(["decode"], 0) == 30
    starts.call(["decode"], 10)
    assert starts.left_s(["decode"], 15) == 25
    assert starts.left_s(["decode"], 100) == 3  # late already: some more, never nothing
    starts.look({"decode": []}, 17)
    assert starts.called(12) == ["decode"]
    assert starts.called(16) == []  # nobody asked for five seconds
    starts.look({"decode": [("d", 1)]}, 18)
    assert starts.usual_s("decode") == 8
    assert starts.called(18) == []


def test_one_that_fell_silent_for_a_moment_is_no_measure_of_a_start() -> None:
    starts = ColdStarts(["decode"], guess_s=30)
    starts.look({"decode": [("d", 1)]}, 0)
    starts.look({"decode": []}, 1)
    starts.call(["decode"], 1)
    starts.look({"decode": [("d", 1)]}, 1.5)
    assert starts.usual_s("decode") == 30
    assert starts.called(1.5) == []  # it is there again all the same
    starts.call(["decode"], 2)
    starts.look({"decode": [("d", 2)]}, 22)  # the same name, in another life
    assert starts.usual_s("decode") == 20


async def test_the_gate_tells_who_is_back_from_who_is_new(asleep) -> None:
    records = Pools().records
    gate = AdmissionQueue(asleep, Placement(), max_waiting=4)
    asleep.records = records
    gate.unmet(time.monotonic())
    for known, learned in ((True, False), (False, True)):
        asleep.records = {"prefill": [], "decode": []}
        with pytest.raises(Refused):
            await gate.enter(ask(100, budget_s=10.0))
        new = {pool: [replace(one, generation=9) for one in all_] for pool, all_ in records.items()}
        asleep.records = records if known else new
        gate.unmet(time.monotonic())
        assert (asleep.starts.usual_s("decode") < 30) is learned


@given(
    st.floats(0.1, 1e3),
    st.floats(0, 1e4),
    st.sets(st.sampled_from(["prefill", "decode"]), min_size=1),
)
def test_what_is_left_is_positive_and_at_most_the_usual(guess_s, later_s, waited) -> None:
    starts = ColdStarts(waited, guess_s)
    starts.call(waited, 0)
    assert 0 < starts.left_s(waited, later_s) <= guess_s


@pytest.fixture
def asleep():
    """Nobody is there in either pool; a start is taken to need 30 s."""
    pools = Pools()
    pools.records = {"prefill": [], "decode": []}
    pools.starts = ColdStarts(["prefill", "decode"], 30)
    return pools


async def test_work_of_the_batch_lane_waits_for_a_start_and_is_told(asleep, monkeypatch) -> None:
    monkeypatch.setattr(places, "TELL_S", 0.0)
    told, gate = [], AdmissionQueue(asleep, Placement(), max_waiting=4)
    held = asyncio.create_task(gate.enter(ask(100, batch=True), told.append))
    await eventually(lambda: told)
    assert (told[0].stage, told[0].position) == ("starting", 1)
    assert 25 < told[0].wait_s <= 30
    assert gate.unmet(time.monotonic()) == {"prefill": 1, "decode": 1}
    asleep.records = Pools().records
    (placed,) = await asyncio.wait_for(held, 5)
    placed.release()
    assert gate.unmet(time.monotonic()) == {}
    assert asleep.starts.usual_s("decode") < 5


async def test_those_held_for_a_start_come_as_work_when_it_is_over(asleep, monkeypatch) -> None:
    came = []
    monkeypatch.setattr(OfferedLoad, "add", lambda demand, work_s, *of: came.append(work_s))
    gate = AdmissionQueue(asleep, Placement(), max_waiting=4)
    held = asyncio.create_task(gate.enter(ask(100, budget_s=1000.0)))
    await eventually(lambda: gate.held == 1)
    assert (came, gate.held_s) == ([], 0.0)
    asleep.records = Pools().records
    (placed,) = await asyncio.wait_for(held, 5)
    placed.release()
    assert len(came) == 1 and came[0] > 0


async def test_who_may_not_wait_so_long_is_told_when_to_come(asleep) -> None:
    gate = AdmissionQueue(asleep, Placement(), max_waiting=4)
    with pytest.raises(Refused) as refused:
        await gate.enter(ask(100, budget_s=10.0))
    assert refused.value.reason == "starting"
    assert 25 < refused.value.retry_after_s <= 30
    # It is being started for whoever was refused, too.
    assert gate.unmet(time.monotonic()) == {"prefill": 1, "decode": 1}


async def test_a_patient_endpoint_waits_within_its_time_and_no_longer(asleep) -> None:
    asleep.starts = ColdStarts(["prefill", "decode"], 0.2)
    gate = AdmissionQueue(asleep, Placement(), max_waiting=4)
    began_s = time.monotonic()
    with pytest.raises(Refused) as refused:
        await asyncio.wait_for(gate.enter(ask(100, budget_s=1.0)), 20)
    assert time.monotonic() - began_s >= 0.4
    assert refused.value.reason == "starting"
    assert refused.value.retry_after_s > 0


async def test_a_pool_that_may_not_sleep_is_missing_and_not_asleep(asleep) -> None:
    asleep.starts = ColdStarts(["decode"], 30)
    with pytest.raises(Unavailable):
        await AdmissionQueue(asleep, Placement(), max_waiting=4).enter(ask(100, batch=True))


async def test_scoring_needs_no_decode_replica(asleep) -> None:
    asleep.records["prefill"] = Pools().records["prefill"]
    gate = AdmissionQueue(asleep, Placement(), max_waiting=4)
    (placed,) = await gate.enter(ask(100, scored_from=1))
    placed.release()


def test_where_there_is_one_pool_it_sleeps_as_both() -> None:
    scaling = ScalingConfig(decode=PoolBounds(0, 2))
    assert TandemConfig(scaling=scaling).sleepers == {"decode"}
    one = TandemConfig(scaling=scaling, prefill=PrefillConfig(replicas=0))
    assert one.sleepers == {"prefill", "decode"}
    assert TandemConfig(prefill=PrefillConfig(replicas=0)).sleepers == set()
