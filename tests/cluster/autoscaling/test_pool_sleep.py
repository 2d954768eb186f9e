"""Pools that go to zero replicas and come back, as the controller decides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.autoscaling.controller import PoolController, Resize
from cluster.autoscaling.load_signals import LoadLimits
from cluster.config.autoscaling import PoolBounds, ScalingConfig
from cluster.config.schema import TandemConfig
from prefill_pool.config import PrefillConfig
from tests.cluster.autoscaling.test_pool_sizes import pools, resized, router

SLEEPS = ScalingConfig(prefill=PoolBounds(0, 2), decode=PoolBounds(0, 2), idle_s=60)


def test_an_idle_pool_sleeps_after_a_while_one_after_the_other() -> None:
    controller = PoolController(SLEEPS, LoadLimits())
    assert resized(pools(), 59, controller) == []
    slept = resized(pools(), 60, controller, 59.5)
    assert slept == [("prefill", 0, 0.5), ("decode", 0, 5.5)]
    assert controller.desired == {"prefill": 0, "decode": 0}
    assert resized([], 600, controller, 120) == []
    assert controller.missing == []


@pytest.mark.parametrize(
    "members",
    [
        pools(used=1),
        [*pools(), router(unserved_decode=1)],
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


def test_a_request_wakes_the_pools_it_needs_at_once_and_once() -> None:
    controller = PoolController(SLEEPS, LoadLimits(), {"prefill": 0, "decode": 0})
    waits = [router(unserved_prefill=1, unserved_decode=1)]
    assert resized(waits, 60, controller) == [("prefill", 1, 0.0), ("decode", 1, 0.5)]
    assert set(controller.missing) == {"prefill", "decode"}
    assert resized([*pools(), *waits], 0, controller, 61) == []
    assert controller.missing == []


def test_a_new_controller_wakes_pools_that_it_does_not_know() -> None:
    """Replicas that are about to come for the first time are not sent away."""
    controller = PoolController(SLEEPS, LoadLimits())
    assert resized([], 600, controller) == []
    assert controller.desired == {}
    assert resized([router(unserved_decode=1)], 0, controller, 601) == [("decode", 1, 0.0)]


class Sleeping(RuleBasedStateMachine):
    """Work comes and goes; replicas come and go as desired."""

    def __init__(self):
        super().__init__()
        self.controller = PoolController(SLEEPS, LoadLimits())
        self.now, self.have, self.used, self.waits = 0.0, {"prefill": 1, "decode": 1}, 0, False

    def members(self):
        waiting = {"unserved_prefill": self.have["prefill"] == 0 and self.waits}
        waiting["unserved_decode"] = self.have["decode"] == 0 and self.waits
        there = pools(self.have["prefill"], self.have["decode"], used=self.used)
        return [*there, router(**{name: int(count) for name, count in waiting.items()})]

    @rule(seconds=st.integers(1, 80), used=st.integers(0, 50))
    def works(self, seconds, used):
        self.used = used if all(self.have.values()) else 0
        self._watch(seconds)

    @rule(seconds=st.integers(2, 30))
    def a_request_waits(self, seconds):
        self.waits = True
        self._watch(seconds)
        # A pool that was asleep is desired by the second decision.
        asleep = [pool for pool, count in self.have.items() if not count]
        assert all(self.controller.desired[pool] >= 1 for pool in asleep)
        self.waits = False

    @rule()
    def as_wanted(self):
        self.have |= self.controller.desired

    def _watch(self, seconds):
        for _ in range(seconds * 2):
            self.now += 0.5
            change = self.controller.decide(self.members(), self.now)
            if isinstance(change, Resize) and change.replicas == 0:
                assert self.used == 0 or change.pool == "prefill"
                assert change.reason

    @invariant()
    def within_bounds(self):
        assert all(0 <= count <= 2 for count in self.controller.desired.values())


TestSleeping = Sleeping.TestCase
# A step is many decisions, each slow if coverage is measured.
TestSleeping.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)


def test_where_there_is_one_pool_it_sleeps_as_both() -> None:
    scaling = ScalingConfig(decode=PoolBounds(0, 2))
    assert TandemConfig(scaling=scaling).sleepers == {"decode"}
    one = TandemConfig(scaling=scaling, prefill=PrefillConfig(replicas=0))
    assert one.sleepers == {"prefill", "decode"}
    assert TandemConfig(prefill=PrefillConfig(replicas=0)).sleepers == set()
