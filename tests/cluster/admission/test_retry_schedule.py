"""The virtual queue of refused requests: apart from each other, bounded, and soon forgotten."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.admission.retry_schedule import RetrySchedule


def test_times_are_as_far_apart_as_the_work_is_long():
    reserved = RetrySchedule()
    slots = [reserved.reserve(number, 0.2, 0.5, 1.0, 0.0) for number in range(5)]
    assert slots[0] == 1.0
    assert all(b - a >= 0.2 for a, b in itertools.pairwise(slots))


def test_only_who_comes_at_its_time_is_expected():
    reserved = RetrySchedule()
    slot = reserved.reserve("a", 0.2, 0.5, 1.0, 0.0)
    assert not reserved.claim("a", slot - 0.5)
    assert not reserved.claim("b", slot)
    assert reserved.claim("a", slot) and not reserved.claim("a", slot)
    reserved.settle("a")
    assert len(reserved) == 0
    slot = reserved.reserve("a", 0.2, 0.5, 1.0, slot)
    assert not reserved.claim("a", slot + 10)
    assert len(reserved) == 0


def test_a_place_is_kept_until_its_owner_is_decided_or_fails_to_come():
    reserved = RetrySchedule()
    slot = reserved.reserve("a", 0.2, 0.5, 1.0, 0.0)
    assert reserved.late(0.5, 0.4, 0.5) == 0
    assert reserved.late(0.5, 1.1, 0.5) == pytest.approx(1.0)
    assert reserved.claim("a", slot)
    assert reserved.late(slot, 0.6, slot) == pytest.approx(1.0)
    reserved.settle("a")
    assert reserved.late(slot, 0.6, slot) == 0
    slot = reserved.reserve("b", 0.2, 0.5, 2.0, slot)
    assert reserved.late(slot, 0.6, slot + 0.4) == 0


def test_where_nobody_returns_nothing_is_kept_for_them():
    reserved, now = RetrySchedule(), 0.0
    for number in range(40):
        reserved.reserve(number, 0.5, 0.2, now + 0.1, now)
        now += 1.0
    assert reserved.returning < 0.1
    assert reserved.reserve("new", 0.5, 0.2, now + 0.1, now) - now < 2.0


def test_nobody_is_sent_behind_a_crowd_that_does_not_come():
    reserved = RetrySchedule()
    times = [reserved.reserve(number, 1.0, 0.5, 0.1, 0.0) for number in range(600)]
    assert times[-1] >= 599.0
    assert reserved.reserve("new", 1.0, 0.5, 30.1, 30.0) < 30.0 + 30.0
    assert reserved.reserve("newer", 1.0, 0.5, 60.1, 60.0) < 60.0 + 2.0


def test_who_is_told_between_others_keeps_the_order():
    reserved = RetrySchedule()
    for number in range(100):
        reserved.reserve(number, 1.0, 0.5, 0.1, 0.0)
    slot = reserved.reserve("new", 1.0, 0.5, 30.1, 30.0)
    assert slot < 100.0
    assert reserved.claim("new", slot)
    reserved.settle("new")
    reserved.claim("nobody", 1000.0)
    assert len(reserved) == 0


def test_who_came_keeps_its_place_for_as_long_as_it_waits():
    reserved = RetrySchedule()
    slot = reserved.reserve("a", 0.2, 10.0, 1.0, 0.0)
    assert reserved.claim("a", slot)
    for later_s in (2.0, 3.0, 5.0):
        now = slot + later_s
        assert reserved.late(now, 5.0, now) == pytest.approx(1.0)
    reserved.settle("a")
    assert reserved.late(now, 5.0, now) == 0 and len(reserved) == 0


def test_what_came_and_is_never_settled_ends_too():
    reserved = RetrySchedule()
    assert reserved.claim("a", reserved.reserve("a", 0.2, 10.0, 1.0, 0.0))
    reserved.late(0.0, 1.0, 3600.0)
    assert len(reserved) == 0


def test_each_of_two_alike_has_a_place_of_its_own():
    reserved = RetrySchedule()
    first = reserved.reserve("a", 0.2, 0.5, 1.0, 0.0)
    assert reserved.claim("a", first)
    second = reserved.reserve("a", 0.2, 0.5, 1.0, first)
    assert second > first and reserved.claim("a", second)
    reserved.settle("a")
    assert len(reserved) == 1
    reserved.settle("a")
    assert len(reserved) == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.floats(0, 3), st.floats(0, 2), st.booleans()), max_size=80
    )
)
def test_no_time_is_early_none_is_past_and_all_end(steps):
    reserved, now = RetrySchedule(), 0.0
    for key, seconds, pause, claims in steps:
        now += pause
        if claims:
            reserved.claim(key, now)
        else:
            assert reserved.reserve(key, seconds, 0.3, now + 0.05, now) > now
        assert 0 <= reserved.returning <= 1
    assert reserved.late(now + 10_000, 10.0, now + 10_000) == 0
    assert len(reserved) == 0
