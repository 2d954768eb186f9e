"""Pressure: what comes in against what can be done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.admission.offered_load import OfferedLoad


def test_a_burst_is_pressure_and_four_long_prompts_are_not():
    demand = OfferedLoad()
    for _ in range(4):
        demand.add(0.6, 100.0, 1.0)
    assert not demand.pressed(100.0)
    for tick in range(22):
        demand.add(0.35, 110 + tick / 11, 1.0)
    assert demand.pressed(112.0)
    # It lasts a little longer than the burst, not for ever.
    assert demand.pressed(112.5)
    assert not demand.pressed(116.0)


def test_long_prompts_with_time_for_them_are_no_pressure_however_slow_the_machine():
    demand = OfferedLoad()
    for _ in range(4):
        demand.add(5.0, 100.0, budget_s=600.0)
    assert not demand.pressed(100.0)
    demand.add(5.0, 100.0, budget_s=1.0)
    assert demand.pressed(100.0)


@pytest.mark.parametrize("slow", [3, 8])
def test_a_burst_in_slow_motion_is_the_same_pressure(slow):
    """All of it, budgets too, takes as many times as long."""
    plain, slowed = OfferedLoad(), OfferedLoad()
    for tick in range(30):
        plain.add(0.3, 100 + tick / 11, budget_s=2.0)
        slowed.add(0.3 * slow, 100 + slow * tick / 11, budget_s=2.0 * slow)
        now = 100 + (tick + 0.5) / 11
        assert slowed.load(100 + slow * (now - 100)) == pytest.approx(plain.load(now))


def test_what_has_time_prolongs_no_pressure_of_what_has_none():
    demand = OfferedLoad()
    demand.add(24.0, 100.0, budget_s=30.0)
    assert not demand.pressed(100.0)
    demand.add(4.0, 100.0, budget_s=1.0)
    assert demand.pressed(100.0)
    assert not demand.pressed(101.5)


def test_more_than_the_longest_time_allows_is_pressure_whatever_its_budget():
    demand = OfferedLoad()
    for tick in range(64):
        demand.add(2.0, float(tick), budget_s=float("inf"))
    assert demand.pressed(64.0)


@pytest.mark.parametrize("load", [0.3, 0.9])
def test_what_can_be_done_is_no_pressure(load):
    demand = OfferedLoad()
    for tick in range(100):
        demand.add(load * 0.2, tick * 0.2, 1.0)
        assert not demand.pressed(tick * 0.2)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 64)), max_size=50),
    st.floats(0, 1),
    st.floats(0, 64),
    st.floats(0, 10),
)
def test_more_work_is_never_less_pressure_and_time_relieves(arrivals, more, budget_s, later):
    less, demand, now = OfferedLoad(), OfferedLoad(), 0.0
    for wait_s, work_s, has_s in arrivals:
        now += wait_s
        less.add(work_s, now, has_s)
        demand.add(work_s, now, has_s)
    demand.add(more, now, budget_s)
    assert demand.load(now) >= less.load(now)
    assert demand.load(now + later) <= demand.load(now)
