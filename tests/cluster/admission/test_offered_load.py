"""Offered load: what arrives, against what the replicas can do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.admission.offered_load import OfferedLoad


@given(st.floats(3.0, 20.0), st.floats(0.2, 2.0))
def test_much_more_than_can_be_done_is_overload_until_soon_after_it_ends(load, budget_s):
    offered, now = OfferedLoad(), 100.0
    for tick in range(60):
        now = 100 + tick / 10
        offered.add(load / 10, now, budget_s)
    assert offered.overloaded(now)
    assert not offered.overloaded(now + 60.0)


@given(st.integers(1, 20), st.floats(0.1, 30.0))
def test_work_that_has_time_enough_is_no_overload(count, budget_s):
    """All of it arrives at once, and takes half of its budget."""
    offered = OfferedLoad()
    for _ in range(count):
        offered.add(budget_s / 2 / count, 100.0, budget_s)
    assert not offered.overloaded(100.0)


@pytest.mark.parametrize("slow", [3, 8])
def test_a_burst_in_slow_motion_is_the_same_load(slow):
    """All of it, budgets too, takes as many times as long."""
    plain, slowed = OfferedLoad(), OfferedLoad()
    for tick in range(30):
        plain.add(0.3, 100 + tick / 11, budget_s=2.0)
        slowed.add(0.3 * slow, 100 + slow * tick / 11, budget_s=2.0 * slow)
        now = 100 + (tick + 0.5) / 11
        assert slowed.load(100 + slow * (now - 100)) == pytest.approx(plain.load(now))


def test_work_that_has_time_prolongs_no_overload_of_work_that_has_none():
    offered = OfferedLoad()
    offered.add(24.0, 100.0, budget_s=30.0)
    assert not offered.overloaded(100.0)
    offered.add(4.0, 100.0, budget_s=1.0)
    assert offered.overloaded(100.0)
    assert not offered.overloaded(101.5)


def test_more_than_can_be_done_for_long_is_overload_whatever_its_budget():
    offered = OfferedLoad()
    for tick in range(64):
        offered.add(2.0, float(tick), budget_s=float("inf"))
    assert offered.overloaded(64.0)


@pytest.mark.parametrize("load", [0.3, 0.9])
def test_feasible_work_is_no_overload(load):
    offered = OfferedLoad()
    for tick in range(100):
        offered.add(load * 0.2, tick * 0.2, 1.0)
        assert not offered.overloaded(tick * 0.2)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 64)), max_size=50),
    st.floats(0, 1),
    st.floats(0, 64),
    st.floats(0, 10),
)
def test_more_work_is_never_less_load_and_time_relieves(arrivals, more, budget_s, later):
    less, offered, now = OfferedLoad(), OfferedLoad(), 0.0
    for wait_s, work_s, has_s in arrivals:
        now += wait_s
        less.add(work_s, now, has_s)
        offered.add(work_s, now, has_s)
    offered.add(more, now, budget_s)
    assert offered.load(now) >= less.load(now)
    assert offered.load(now + later) <= offered.load(now)
