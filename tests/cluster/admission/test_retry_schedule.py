"""Retry times of refused requests: apart from each other, bounded, and soon forgotten."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.admission.retry_schedule import RetrySchedule


def test_retry_times_are_spaced_by_their_work():
    retries = RetrySchedule()
    times = [retries.promise(number, 0.2, 0.5, 1.0, 0.0) for number in range(5)]
    assert times[0] == 1.0
    assert all(b - a >= 0.2 for a, b in itertools.pairwise(times))


def test_only_a_request_that_comes_at_its_time_is_promised():
    retries = RetrySchedule()
    at_s = retries.promise("a", 0.2, 0.5, 1.0, 0.0)
    assert not retries.claim("a", at_s - 0.5)
    assert not retries.claim("b", at_s)
    assert retries.claim("a", at_s) and not retries.claim("a", at_s)
    retries.settle("a")
    assert len(retries) == 0
    at_s = retries.promise("a", 0.2, 0.5, 1.0, at_s)
    assert not retries.claim("a", at_s + 10)
    assert len(retries) == 0


def test_a_retry_is_kept_until_its_request_is_decided_or_fails_to_come():
    retries = RetrySchedule()
    at_s = retries.promise("a", 0.2, 0.5, 1.0, 0.0)
    assert retries.late(0.5, 0.4, 0.5) == 0
    assert retries.late(0.5, 1.1, 0.5) == pytest.approx(1.0)
    assert retries.claim("a", at_s)
    assert retries.late(at_s, 0.6, at_s) == pytest.approx(1.0)
    retries.settle("a")
    assert retries.late(at_s, 0.6, at_s) == 0
    at_s = retries.promise("b", 0.2, 0.5, 2.0, at_s)
    assert retries.late(at_s, 0.6, at_s + 0.4) == 0


def test_without_returning_requests_no_time_is_kept():
    retries, now = RetrySchedule(), 0.0
    for number in range(40):
        retries.promise(number, 0.5, 0.2, now + 0.1, now)
        now += 1.0
    assert retries.return_rate < 0.1
    assert retries.promise("new", 0.5, 0.2, now + 0.1, now) - now < 2.0


def test_a_retry_time_is_not_behind_retries_that_do_not_come():
    retries = RetrySchedule()
    times = [retries.promise(number, 1.0, 0.5, 0.1, 0.0) for number in range(600)]
    assert times[-1] >= 599.0
    assert retries.promise("new", 1.0, 0.5, 30.1, 30.0) < 30.0 + 30.0
    assert retries.promise("newer", 1.0, 0.5, 60.1, 60.0) < 60.0 + 2.0


def test_retries_promised_between_others_keep_the_order():
    retries = RetrySchedule()
    for number in range(100):
        retries.promise(number, 1.0, 0.5, 0.1, 0.0)
    at_s = retries.promise("new", 1.0, 0.5, 30.1, 30.0)
    assert at_s < 100.0
    assert retries.claim("new", at_s)
    retries.settle("new")
    retries.claim("nobody", 1000.0)
    assert len(retries) == 0


def test_a_retry_that_came_is_kept_while_its_request_waits():
    retries = RetrySchedule()
    at_s = retries.promise("a", 0.2, 10.0, 1.0, 0.0)
    assert retries.claim("a", at_s)
    for later_s in (2.0, 3.0, 5.0):
        now = at_s + later_s
        assert retries.late(now, 5.0, now) == pytest.approx(1.0)
    retries.settle("a")
    assert retries.late(now, 5.0, now) == 0 and len(retries) == 0


def test_a_claimed_retry_that_is_never_settled_expires():
    retries = RetrySchedule()
    assert retries.claim("a", retries.promise("a", 0.2, 10.0, 1.0, 0.0))
    retries.late(0.0, 1.0, 3600.0)
    assert len(retries) == 0


def test_each_of_two_alike_has_a_retry_of_its_own():
    retries = RetrySchedule()
    first = retries.promise("a", 0.2, 0.5, 1.0, 0.0)
    assert retries.claim("a", first)
    second = retries.promise("a", 0.2, 0.5, 1.0, first)
    assert second > first and retries.claim("a", second)
    retries.settle("a")
    assert len(retries) == 1
    retries.settle("a")
    assert len(retries) == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.floats(0, 3), st.floats(0, 2), st.booleans()), max_size=80
    )
)
def test_no_time_is_early_none_is_past_and_all_end(steps):
    retries, now = RetrySchedule(), 0.0
    for key, seconds, pause, claims in steps:
        now += pause
        if claims:
            retries.claim(key, now)
        else:
            assert retries.promise(key, seconds, 0.3, now + 0.05, now) > now
        assert 0 <= retries.return_rate <= 1
    assert retries.late(now + 10_000, 10.0, now + 10_000) == 0
    assert len(retries) == 0


@given(
    st.lists(st.tuples(st.sampled_from("pcs"), st.integers(0, 5), st.floats(0, 0.8)), max_size=60)
)
def test_the_sums_of_work_are_those_of_the_retries(steps):
    retries, now = RetrySchedule(), 0.0
    for what, key, passed_s in steps:
        now += passed_s
        if what == "p":
            retries.promise(key, 0.1 * key, 0.5, now + 0.3, now)
        elif what == "c":
            assert retries.is_due(key, now) == retries.claim(key, now)
        else:
            retries.settle(key)
        for claimed in (False, True):
            work_s = sum(one.seconds for one in retries._retries if one.claimed is claimed)
            assert retries._work_s[claimed] == pytest.approx(work_s, abs=1e-9)
        assert len(retries) == sum(map(len, retries._by_key.values()))
