"""A request that returns at its retry time is served, and no request waits in vain."""

from functools import cache
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.admission.retry_schedule import RetrySchedule
from tests.cluster.admission.burst import BUDGET_S, TICK_S
from tests.cluster.admission.returning import Returning

SEEDS = range(2)


@cache
def bursts(faithful):
    return [Returning(seed=seed, faithful=faithful).run() for seed in SEEDS]


@pytest.mark.parametrize(("faithful", "share"), [(1.0, 0.92), (0.6, 0.85)])
def test_nine_of_ten_that_return_are_within_their_goals(faithful, share):
    """Predictions are off by 20 %, twice, and new ones keep coming."""
    again = [call for burst in bursts(faithful) for call in burst.again]
    assert len(again) >= 30 * len(SEEDS)
    assert sum(call.in_goals for call in again) >= share * len(again)


def test_the_time_named_is_no_longer_than_the_work_before_it():
    """Of the time that the refused are told to wait the replica has prompts for two thirds."""
    told = [
        (one.named_s, burst.busy_s(one.at_s, one.at_s + one.named_s))
        for burst in bursts(1.0)
        for one in burst.told
    ]
    assert median(named_s / max(TICK_S, work_s) for named_s, work_s in told) <= 1.25
    assert sum(named_s <= 1.5 * work_s + 0.5 for named_s, work_s in told) >= 0.97 * len(told)


def test_a_refusal_is_decided_in_half_the_budget():
    decided = [told.decided_s for burst in bursts(1.0) for told in burst.told]
    assert max(decided) <= BUDGET_S / 2 + TICK_S


def test_nearly_all_are_served_at_their_first_or_second_try():
    for burst in bursts(1.0):
        assert sum(call.in_goals for call in burst.calls) >= 0.92 * len(burst.calls)


work = st.tuples(st.floats(0.01, 1.0), st.floats(0.0, 1.0))


@settings(deadline=None)
@given(st.lists(work, max_size=12), st.floats(0, 3), st.floats(0, 1), st.floats(0, 1))
def test_more_work_in_front_makes_no_fewer_late(promised, begin_s, seconds, more_s):
    retries = RetrySchedule()
    for key, (takes_s, slack_s) in enumerate(promised):
        retries.promise(key, takes_s, slack_s, 1.0, 0.0)
    assert retries.late(begin_s, 0.0, 0.0) == 0
    less, more = (retries.late(begin_s, one, 0.0) for one in (seconds, seconds + more_s))
    assert 0 <= less <= more <= len(promised)


@settings(deadline=None)
@given(st.lists(work, min_size=1, max_size=12))
def test_work_done_before_the_first_promised_retry_makes_none_late(promised):
    retries = RetrySchedule()
    times = [
        retries.promise(key, takes_s, slack_s, 1.0, 0.0)
        for key, (takes_s, slack_s) in enumerate(promised)
    ]
    assert retries.late(0.0, times[0], 0.0) == 0
    first_s, slack_s = times[0], promised[0][1]
    assert retries.late(first_s, slack_s + 0.01, first_s) >= 1
