"""Pressure: what comes in against what can be done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.demand import Demand


def test_a_burst_is_pressure_and_four_long_prompts_are_not():
    demand = Demand()
    for _ in range(4):
        demand.add(0.6, 100.0)
    assert not demand.pressed(100.0)
    for tick in range(22):
        demand.add(0.35, 110 + tick / 11)
    assert demand.pressed(112.0)
    # It lasts a little longer than the burst, not for ever.
    assert demand.pressed(112.5)
    assert not demand.pressed(116.0)


@pytest.mark.parametrize("load", [0.3, 0.9])
def test_what_can_be_done_is_no_pressure(load):
    demand = Demand()
    for tick in range(100):
        demand.add(load * 0.2, tick * 0.2)
        assert not demand.pressed(tick * 0.2)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=50),
    st.floats(0, 1),
    st.floats(0, 10),
)
def test_more_work_is_never_less_pressure_and_time_relieves(arrivals, more, later):
    less, demand, now = Demand(), Demand(), 0.0
    for wait_s, work_s in arrivals:
        now += wait_s
        less.add(work_s, now)
        demand.add(work_s, now)
    demand.add(more, now)
    assert demand.load(now) >= less.load(now)
    assert demand.load(now + later) <= demand.load(now)
