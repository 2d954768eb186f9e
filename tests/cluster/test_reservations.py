"""The virtual queue of refused requests: apart from each other, bounded, and soon forgotten."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.reservations import Reservations


def test_times_are_as_far_apart_as_the_work_is_long():
    reserved = Reservations()
    slots = [reserved.reserve(number, 0.2, 0.5, 1.0, 0.0) for number in range(5)]
    assert slots[0] == 1.0
    assert all(b - a >= 0.2 for a, b in itertools.pairwise(slots))


def test_only_who_comes_at_its_time_is_expected():
    reserved = Reservations()
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
    reserved = Reservations()
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
    reserved, now = Reservations(), 0.0
    for number in range(40):
        reserved.reserve(number, 0.5, 0.2, now + 0.1, now)
        now += 1.0
    assert reserved.returning < 0.1
    assert reserved.reserve("new", 0.5, 0.2, now + 0.1, now) - now < 2.0


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.floats(0, 3), st.floats(0, 2), st.booleans()), max_size=80
    )
)
def test_no_time_is_early_none_is_past_and_all_end(steps):
    reserved, now = Reservations(), 0.0
    for key, seconds, pause, claims in steps:
        now += pause
        if claims:
            reserved.claim(key, now)
        else:
            assert reserved.reserve(key, seconds, 0.3, now + 0.05, now) > now
        assert 0 <= reserved.returning <= 1
    assert reserved.late(now + 10_000, 10.0, now + 10_000) == 0
    assert len(reserved) == 0
