"""Role flips between the pools: by example, and as a machine that is loaded at random."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.autoscaling.controller import PoolController
from cluster.autoscaling.load_signals import LoadLimits
from cluster.config.autoscaling import ScalingConfig
from cluster.replica_record import ReplicaLoad, ReplicaRecord

CONFIG = ScalingConfig(flip_roles=True)


def replica(name, home, *, role=None, queue_s=0.0, used=0):
    load = ReplicaLoad(
        blocks_total=100,
        blocks_used=used,
        batch_limit=100,
        prompt_tokens_due=round(queue_s * 1000),
        prompt_tokens_per_s=1000.0,
    )
    return ReplicaRecord(name, role or home, "h:1", 1, home=home, load=load)


def watch(members, seconds, controller=None, began_s=0.0):
    """The first change within that time, and when it came."""
    controller = controller or PoolController(CONFIG, LoadLimits())
    for tick in range(round(seconds * 2) + 1):
        flip = controller.decide(members, began_s + tick / 2)
        if flip is not None:
            return flip.replica.id, flip.role, tick / 2
    return None


def test_a_single_decode_replica_takes_prompts_of_any_length_while_they_wait():
    members = [replica("p", "prefill", queue_s=1.5), replica("d", "decode", used=60)]
    assert watch(members, 10) == ("d", "both", 2.0)


def test_one_of_several_flips_wholly_if_the_others_can_carry_its_work():
    pressed = replica("p", "prefill", queue_s=1.5)
    idle = [pressed, replica("d0", "decode", used=20), replica("d1", "decode", used=10)]
    assert watch(idle, 10) == ("d1", "prefill", 2.0)
    busy = [pressed, replica("d0", "decode", used=50), replica("d1", "decode", used=40)]
    assert watch(busy, 10) == ("d1", "both", 2.0)


def test_prefill_flips_for_a_full_decode_pool():
    members = [replica("p", "prefill"), replica("d", "decode", used=95)]
    assert watch(members, 10) == ("p", "both", 2.0)


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ({"queue_s": 0.9}, {"used": 80}),  # neither is pressed
        ({"queue_s": 2.0}, {"used": 95}),  # both are
        ({}, {}),
    ],
)
def test_nothing_is_changed_without_need_or_means(prefill, decode):
    members = [replica("p", "prefill", **prefill), replica("d", "decode", **decode)]
    assert watch(members, 100) is None


def test_a_peak_shorter_than_pressure_hold_s_changes_nothing():
    controller = PoolController(CONFIG, LoadLimits())
    pressed = [replica("p", "prefill", queue_s=5), replica("d", "decode")]
    calm = [replica("p", "prefill"), replica("d", "decode")]
    for start_s in range(0, 30, 3):
        assert watch(pressed, 1.5, controller, start_s) is None
        assert watch(calm, 0.5, controller, start_s + 2) is None


def test_a_flipped_replica_goes_home_when_it_was_calm_for_long():
    flipped = replica("d1", "decode", role="prefill")
    members = [replica("p", "prefill"), replica("d0", "decode"), flipped]
    assert watch(members, 60) == ("d1", "decode", 20.0)
    busy = replica("d1", "decode", role="prefill", queue_s=0.6)
    members = [replica("p", "prefill", queue_s=0.6), replica("d0", "decode"), busy]
    assert watch(members, 60) is None


class ScalingMachine(RuleBasedStateMachine):
    """Any loads at any time; what the controller decides is done."""

    def __init__(self):
        super().__init__()
        self.controller = PoolController(CONFIG, LoadLimits())
        homes = ["prefill", "prefill", "decode", "decode", "decode"]
        self.members = [replica(f"r{number}", home) for number, home in enumerate(homes)]
        self.now = 0.0
        self.changes = []

    @rule(
        number=st.integers(0, 4),
        queue_s=st.sampled_from([0.0, 0.4, 0.9, 3.0]),
        used=st.sampled_from([0, 30, 60, 95]),
        seconds=st.integers(1, 60),
    )
    def go_on(self, number, queue_s, used, seconds):
        load = replica("x", "decode", queue_s=queue_s, used=used).load
        self.members[number] = replace(self.members[number], load=load)
        self._watch(seconds)

    @rule()
    def calm(self):
        """With nothing to do everybody goes home, and stays there."""
        self.members = [
            replace(record, load=replica("x", "decode").load) for record in self.members
        ]
        self._watch(120)
        assert all(record.role == record.home for record in self.members)
        before = len(self.changes)
        self._watch(120)
        assert len(self.changes) == before

    def _watch(self, seconds):
        for _ in range(seconds * 2):
            self.now += 0.5
            flip = self.controller.decide(self.members, self.now)
            if flip is not None:
                assert flip.reason
                assert flip.role != flip.replica.role
                self.changes.append(self.now)
                self.members = [
                    replace(r, role=flip.role) if r is flip.replica else r for r in self.members
                ]

    @invariant()
    def no_pool_is_empty(self):
        for pool in ("prefill", "decode"):
            assert any(record.serves(pool) for record in self.members)

    @invariant()
    def changes_keep_their_distance(self):
        assert all(b - a >= CONFIG.rest_s for a, b in pairwise(self.changes))


TestScaling = ScalingMachine.TestCase
# Less than the usual: a step is up to four minutes, decided on twice a second.
TestScaling.settings = settings(max_examples=40, stateful_step_count=25)
