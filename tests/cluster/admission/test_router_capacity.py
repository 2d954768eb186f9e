"""The retry times of a full router."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.admission.router_capacity import RouterCapacity

STAYS = st.lists(st.floats(0, 1000), min_size=1, max_size=20)


def after(*stays_s: float) -> RouterCapacity:
    made = RouterCapacity()
    for stayed_s in stays_s:
        made.ended(stayed_s)
    return made


def test_before_any_has_ended_there_is_a_time_all_the_same():
    assert RouterCapacity().wait_s(1, 4, 0.0) == 1.0


def test_each_refused_request_waits_behind_the_earlier_ones():
    capacity = after(*[8.0] * 5)  # of 16 that run two end in a second
    assert [capacity.wait_s(1, 16, 100.0) for _ in range(3)] == pytest.approx([0.5, 1.0, 1.5])
    assert capacity.wait_s(4, 16, 101.0) == pytest.approx(2.5)
    assert capacity.wait_s(1, 16, 200.0) == pytest.approx(0.5)


def test_a_lane_that_may_fill_less_waits_longer_and_delays_no_other():
    """Of 16 that run 4 must end, and then one; for a chat one is enough, right behind it."""
    capacity = after(*[8.0] * 5)
    assert [capacity.wait_s(1, 16, 0.0, 4) for _ in range(2)] == pytest.approx([2.5, 3.0])
    assert capacity.wait_s(1, 16, 0.0) == pytest.approx(1.5)


def test_it_follows_how_long_requests_stay():
    capacity = after(*[1.0] * 50, *[10.0] * 50)
    assert capacity.wait_s(1, 10, 0.0) == pytest.approx(1.0, rel=0.02)


@given(STAYS, st.lists(st.tuples(st.integers(1, 200), st.floats(0, 10)), max_size=50))
def test_a_time_is_never_nothing_and_at_most_what_requests_stay(stays_s, refused):
    capacity, now = after(*stays_s), 0.0
    for choices, passed_s in refused:
        now += passed_s
        assert 0.05 <= capacity.wait_s(choices, 100, now) <= max(0.05, *stays_s) * (1 + 1e-9)


@given(STAYS, st.integers(1, 50), st.integers(1, 50))
def test_more_choices_never_wait_less(stays_s, choices, more):
    fewer, greater = (after(*stays_s).wait_s(n, 100, 0.0) for n in (choices, choices + more))
    assert fewer <= greater
