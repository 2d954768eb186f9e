"""The policy: late requests are refused early, with a time at which a retry is admitted."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.admission.policy import Admission, Admit, Refuse, Wait
from cluster.placement.types import Forecast, PlacementRequest
from tests.cluster.admission.burst import BUDGET_S, Burst


def forecast(ttft_s=0.2, **more):
    values = {"deadline_s": 1.0, "alone_s": 0.1, "feasible": ttft_s <= 1.0, **more}
    return Forecast(ttft_s, **values)


def request(**more):
    return PlacementRequest(100, 132, **{"budget_s": 1.0, "itl_s": 0.06, **more})


def test_a_request_in_time_is_admitted():
    assert Admission().judge(request(), forecast(), 0.0) == Admit()


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (forecast(ttft_s=5.0, work_s=4.9), "ttft"),
        (forecast(step_s=0.07, itl_s=0.06, requests=4, interval_s=0.5), "itl"),
        (forecast(blocks_shortfall=3, requests=4, interval_s=0.5), "kv_blocks"),
        (forecast(slots_shortfall=1, requests=4, interval_s=0.5), "decode_batch"),
    ],
)
def test_a_refusal_has_its_reason_and_a_time(found, reason):
    verdict = Admission().judge(request(), found, 0.5)
    assert isinstance(verdict, Refuse)
    assert verdict.reason == reason
    assert 0 < verdict.retry_after_s < 6


def test_with_a_full_queue_the_retry_time_is_after_the_end_of_a_request():
    found = forecast(interval_s=2.0)
    assert (
        Admission().refuse("queue_full", request(budget_s=600.0), found, 0.0).retry_after_s >= 2.0
    )


def test_a_hopeless_queue_is_refused_at_once_and_a_near_miss_waits_for_half_its_budget():
    """Less what a decision at the last moment may be late by."""
    admission = Admission()
    assert isinstance(admission.judge(request(), forecast(5.0, work_s=4.9), 0.0), Refuse)
    near = forecast(1.1, work_s=1.0)
    verdict = admission.judge(request(), near, 0.0)
    assert isinstance(verdict, Wait) and verdict.reason == "ttft"
    assert 0.4 < verdict.until_s < 0.5
    assert isinstance(admission.judge(request(), near, verdict.until_s), Refuse)


def test_a_replica_without_requests_takes_any():
    """An answer that no wait would make possible is not refused for its own size."""
    found = forecast(step_s=0.2, itl_s=0.06, blocks_shortfall=5, requests=0)
    assert Admission().judge(request(), found, 0.0) == Admit()


def test_the_batch_lane_waits_for_capacity_and_is_never_refused_as_late():
    admission = Admission()
    late = forecast(50.0, work_s=49.0)
    assert admission.judge(request(batch=True), late, 10.0) == Admit()
    full = forecast(step_s=0.07, itl_s=0.06, requests=4)
    assert admission.judge(request(batch=True), full, 10.0) == Wait("itl", float("inf"))


def test_refused_requests_get_times_one_behind_the_other_and_go_first_then():
    admission = Admission()
    late = forecast(2.0, work_s=2.0, alone_s=0.5)
    named = [admission.judge(request(key=number), late, 0.5).retry_after_s for number in range(4)]
    assert all(later - earlier >= 0.5 for earlier, later in itertools.pairwise(named))
    # The same request is told the same time, and it has it once.
    again = admission.judge(request(key=1), late, 0.5)
    assert again.retry_after_s == pytest.approx(named[1])
    then = 0.5 + named[0]
    assert admission.claim_retry(request(key=0), then) and not admission.claim_retry(
        request(key=0), then
    )
    # What is promised leaves no time for a new request; for those that come back it does.
    arriving = forecast(0.7, work_s=0.5, alone_s=0.2, deadline_s=then + 1)
    new = request(arrived_s=then, key="new")
    assert admission.judge(new, arriving, then) != Admit()
    assert admission.judge(request(arrived_s=then, key=0), arriving, then, promised=True) == Admit()


def test_a_tenant_at_its_caps_moves_no_other_retry():
    admission = Admission()
    found = forecast(interval_s=0.3)
    for number in range(500):
        for reason in ("tenant_concurrent", "tenant_waiting", "tenant_kv"):
            told = admission.refuse(reason, request(key=number), found, 0.5)
            assert told == Refuse(reason, 0.3)
    late = forecast(2.0, work_s=2.0, alone_s=0.5)
    other = request(key="other")
    assert admission.judge(other, late, 0.5) == Admission().judge(other, late, 0.5)


@given(st.lists(st.booleans(), max_size=200), st.floats(0.05, 5))
def test_the_margin_stays_within_its_bounds(lates, budget_s):
    admission = Admission()
    for late in lates:
        admission.learn(late, budget_s)
    assert 0 < admission.margin_s(budget_s) <= budget_s / 2


def test_the_margin_is_each_budgets_own_and_narrows_again():
    admission = Admission()
    at_first_s = admission.margin_s(0.2)
    for _ in range(200):
        admission.learn(True, 0.2)
    widest_s = admission.margin_s(0.2)
    assert widest_s > at_first_s
    assert admission.margin_s(30.0) == Admission().margin_s(30.0)
    for _ in range(100):
        admission.learn(False, 0.2)
    assert admission.margin_s(0.2) < widest_s


@given(
    st.floats(0, 20),
    st.floats(0, 20),
    st.floats(0.001, 2),
    st.floats(0, 0.2),
    st.integers(0, 9),
)
def test_every_verdict_is_an_answer(ttft_s, work_s, alone_s, step_s, requests):
    """Decided after half the budget at the latest, never with a time in the past."""
    found = forecast(
        ttft_s, work_s=work_s, alone_s=alone_s, step_s=step_s, itl_s=0.06, requests=requests
    )
    verdict = Admission().judge(request(), found, 0.5)
    assert isinstance(verdict, Admit | Refuse)
    if isinstance(verdict, Refuse):
        assert verdict.retry_after_s > 0


def test_in_a_burst_few_are_late_and_about_as_many_are_served_as_can_be():
    """Without admission the late ones wait for seconds; with it they are told to come back."""
    crowd = Burst(seed=1, admit_all=True).run()
    policy = Burst(seed=1).run()
    late = [call for call in policy.finished if call.first_s > call.deadline_s]
    waited = [call for call in crowd.finished if call.first_s - call.arrival_s > BUDGET_S]
    assert len(late) <= 0.05 * len(policy.finished)
    assert len(waited) >= 5 * max(1, len(late))
    assert policy.in_goals >= 0.9 * crowd.in_goals


def test_requests_refused_in_a_burst_succeed_when_they_return():
    burst = Burst(seed=1, prefill_rate=2000.0, returning=True).run()
    assert len(burst.returns) >= 20
    assert sum(burst.returns) >= 0.9 * len(burst.returns)
    drained_s = max(call.done_s for call in burst.finished if call.refused) - 25
    assert max(burst.named_s) <= 1.5 * drained_s


def test_all_load_is_given_back():
    burst = Burst(seed=2, returning=True).run()
    tracker = burst.placement.load_tracker
    prefill, decode = burst.records()
    assert tracker.backlog(prefill.id).remaining() == []
    burst.report()
    assert tracker.requests(decode) == 0 and tracker.blocks(decode) == 0
    assert len(burst.finished) == len(burst.calls)


@given(st.floats(0, 10), st.floats(0, 60), st.floats(0, 5), st.integers(0, 9), st.integers(0, 50))
def test_a_request_with_more_before_it_waits_longer(alone_s, work_s, interval_s, short, before):
    found = forecast(
        work_s + alone_s,
        alone_s=alone_s,
        work_s=work_s,
        blocks_shortfall=short,
        requests=3,
        interval_s=interval_s,
    )
    admission = Admission()
    for one in (request(), request(batch=True)):
        waits = [admission.wait_s(one, found, behind, 0.0) for behind in (before, before + 1)]
        assert 0 <= waits[0] <= waits[1]
