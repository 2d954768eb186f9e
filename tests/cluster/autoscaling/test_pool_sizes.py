"""How many replicas pools should have: by example, and under any load."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.autoscaling.controller import Flip, PoolController, Resize
from cluster.autoscaling.load_signals import LoadLimits
from cluster.config.autoscaling import PoolBounds, ScalingConfig
from cluster.replica_record import ReplicaLoad, ReplicaRecord
from tests.cluster.autoscaling.test_controller import replica

SCALES = ScalingConfig(prefill=PoolBounds(1, 4), decode=PoolBounds(1, 4))


def router(**unserved):
    return ReplicaRecord("router", "router", "h:1", 1, load=ReplicaLoad(**unserved))


def pools(prefill=1, decode=1, *, queue_s=0.0, used=0):
    first = [replica(f"p{number}", "prefill", queue_s=queue_s) for number in range(prefill)]
    return first + [replica(f"d{number}", "decode", used=used) for number in range(decode)]


def resized(members, seconds, controller, began_s=0.0):
    """The sizes that were desired in that time, and when; no replica comes or goes."""
    changes = []
    for tick in range(round(seconds * 2) + 1):
        change = controller.decide(members, began_s + tick / 2)
        if isinstance(change, Resize):
            changes.append((change.pool, change.replicas, tick / 2))
    return changes


@pytest.mark.parametrize(
    ("members", "pool"),
    [
        (pools(queue_s=1.5), "prefill"),
        (pools(used=95), "decode"),
        ([*pools(), router(unserved_prefill=1)], "prefill"),
        ([*pools(), router(unserved_decode=1)], "decode"),
    ],
)
def test_a_pool_under_pressure_gets_one_more_and_no_second_before_that_is_there(members, pool):
    controller = PoolController(SCALES, LoadLimits())
    assert resized(members, 600, controller) == [(pool, 2, 2.0)]
    assert controller.desired[pool] == 2


def test_pressure_counts_anew_when_a_replica_has_come():
    controller = PoolController(SCALES, LoadLimits())
    assert resized(pools(queue_s=1.5), 60, controller) == [("prefill", 2, 2.0)]
    assert resized(pools(2, queue_s=1.5), 60, controller, 60.5) == [("prefill", 3, 2.0)]
    full = resized(pools(4, queue_s=1.5), 60, controller, 121)
    assert full == [("prefill", 4, 2.0)]
    assert resized(pools(4, queue_s=9), 60, controller, 182) == []


def test_a_replica_to_spare_is_given_back_after_a_while_one_at_a_time():
    controller = PoolController(SCALES, LoadLimits())
    assert resized(pools(3), 119, controller) == []
    # Nothing more before that one has gone.
    assert resized(pools(3), 600, controller, 119.5) == [("prefill", 2, 0.5)]
    assert resized(pools(2), 600, controller, 720) == [("prefill", 1, 120.0)]
    assert resized(pools(1), 600, controller, 1321) == []


def test_a_replica_is_kept_whose_work_the_others_could_not_carry():
    controller = PoolController(SCALES, LoadLimits())
    assert resized(pools(3, 2, queue_s=0.4, used=30), 600, controller) == []
    assert resized([*pools(3), router(unserved_prefill=1)], 600, controller, 601)[0][1] == 4


def test_a_role_flip_comes_before_a_new_replica():
    config = replace(SCALES, flip_roles=True)
    controller = PoolController(config, LoadLimits())
    change = next(filter(None, (controller.decide(pools(queue_s=3), t / 2) for t in range(20))))
    assert isinstance(change, Flip)
    flipped = [replica("p0", "prefill", queue_s=3), replica("d0", "decode", role="both", queue_s=3)]
    assert resized(flipped, 20, controller, 10)[0][:2] == ("prefill", 2)


def test_in_one_pool_waiting_prompts_are_a_lack_of_replicas_that_do_both():
    config = ScalingConfig(decode=PoolBounds(1, 2))
    members = [replace(replica("d", "decode", role="both", queue_s=2), home="both")]
    assert resized(members, 60, PoolController(config, LoadLimits())) == [("decode", 2, 2.0)]


def test_the_itl_counts_where_streams_share_a_step():
    slow = replica("d", "decode")
    slow = replace(slow, load=replace(slow.load, step_s=0.08, streams=2))
    members = [replica("p", "prefill"), slow]
    assert resized(members, 60, PoolController(SCALES, LoadLimits(itl_s=0.06))) == [
        ("decode", 2, 2.0)
    ]
    alone = replace(slow, load=replace(slow.load, streams=1))
    members = [replica("p", "prefill"), alone]
    assert resized(members, 60, PoolController(SCALES, LoadLimits(itl_s=0.06))) == []


def settle(load, pool, began_with, seconds=3000):
    """Sizes over time where `load`, in replicas at their limit, is shared by those that are there.

    What was decided is done 20 s later.
    """
    controller, have, due, sizes = PoolController(SCALES, LoadLimits()), began_with, [], []
    for tick in range(seconds):
        while due and due[0][0] <= tick:
            have = due.pop(0)[1]
        each = load / have
        queue_s, used = (each, 0) if pool == "prefill" else (0.0, round(90 * each))
        sizes_now = {"prefill": 1, "decode": 1} | {pool: have}
        members = pools(**sizes_now, queue_s=queue_s, used=used)
        change = controller.decide(members, float(tick))
        if isinstance(change, Resize) and change.pool == pool:
            assert change.reason
            sizes.append(change.replicas)
            due.append((tick + 20, change.replicas))
    return sizes, have


@settings(max_examples=25, deadline=None)
@given(st.floats(0, 6), st.sampled_from(["prefill", "decode"]), st.integers(1, 4))
def test_a_load_that_stays_the_same_moves_a_pool_in_one_direction_only(load, pool, began_with):
    sizes, have = settle(load, pool, began_with)
    steps = [after - before for before, after in pairwise([began_with, *sizes])]
    assert len({step > 0 for step in steps}) <= 1
    assert all(1 <= size <= 4 for size in sizes)
    assert have == 4 or load / have < 1.02
    assert have == 1 or load / (have - 1) > 0.48


LOADS = st.sampled_from([0.0, 0.3, 0.6, 1.2, 3.0])


@settings(max_examples=100, deadline=None)
@given(st.lists(LOADS, min_size=1, max_size=200), LOADS, LOADS, st.integers(1, 4))
def test_more_load_never_makes_a_pool_smaller(history, one, other, count):
    """After the same history."""
    config = ScalingConfig(
        prefill=PoolBounds(1, 4), pressure_hold_s=1, calm_s=1, spare_s=3, rest_s=1
    )
    controller = PoolController(config, LoadLimits())
    for tick, load in enumerate(history):
        controller.decide(pools(count, queue_s=load), tick / 2)
    desired = []
    for load in sorted((one, other)):
        copied = deepcopy(controller)
        copied.decide(pools(count, queue_s=load), len(history) / 2)
        desired.append(copied.desired["prefill"])
    assert desired[0] <= desired[1]


class SizingMachine(RuleBasedStateMachine):
    """Any loads, and replicas that come, go and die when they like."""

    CONFIG = ScalingConfig(
        flip_roles=True,
        prefill=PoolBounds(1, 3),
        decode=PoolBounds(2, 4),
        step=2,
        spare_s=10,
        calm_s=5,
    )

    def __init__(self):
        super().__init__()
        self.controller = PoolController(self.CONFIG, LoadLimits())
        self.now, self.changes, self.names = 0.0, [], count()
        self.members = [self.new("prefill"), self.new("decode"), self.new("decode")]

    def new(self, pool):
        return replica(f"r{next(self.names)}", pool)

    @rule(
        number=st.integers(0, 9),
        queue_s=st.sampled_from([0.0, 0.4, 3.0]),
        used=st.sampled_from([0, 30, 95]),
        refused=st.integers(0, 2),
        seconds=st.integers(1, 60),
    )
    def go_on(self, number, queue_s, used, refused, seconds):
        number %= len(self.members)
        load = replica("x", "decode", queue_s=queue_s, used=used).load
        self.members[number] = replace(self.members[number], load=load)
        for _ in range(seconds * 2):
            self.now += 0.5
            seen = [*self.members, router(unserved_prefill=refused)]
            change = self.controller.decide(seen, self.now)
            if change is not None:
                assert change.reason
                self.changes.append(self.now)
            if isinstance(change, Resize):
                assert change.replicas != change.before
                assert abs(change.replicas - change.before) <= 2
            elif isinstance(change, Flip):
                self.members = [
                    replace(r, role=change.role) if r.id == change.replica.id else r
                    for r in self.members
                ]

    @rule(pool=st.sampled_from(["prefill", "decode"]))
    def serve_does_as_it_was_told(self, pool):
        mine = [record for record in self.members if record.home == pool]
        desired = self.controller.desired.get(pool, len(mine))
        self.members += [self.new(pool) for _ in range(desired - len(mine))]
        for record in mine[desired:]:
            self.members.remove(record)

    @rule(pool=st.sampled_from(["prefill", "decode"]))
    def one_dies(self, pool):
        mine = [record for record in self.members if record.home == pool]
        if len(mine) > 1:
            self.members.remove(mine[0])

    @invariant()
    def bounds_are_kept(self):
        for pool, size in self.controller.desired.items():
            bounds = self.CONFIG.bounds[pool]
            assert bounds.min <= size <= bounds.max

    @invariant()
    def changes_keep_their_distance(self):
        assert all(b - a >= self.CONFIG.rest_s for a, b in pairwise(self.changes))


TestSizing = SizingMachine.TestCase
