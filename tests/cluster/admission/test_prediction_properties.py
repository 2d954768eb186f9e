"""Predictions and verdicts are monotone, and promises stay within their caps: by property."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cluster.admission.policy import Admission, Admit, Refuse, Wait
from cluster.admission.retry_schedule import RetrySchedule
from cluster.config.tenant_limits import TenantConfig
from cluster.placement.edf_forecast import EdfPrompt, forecast_prompt
from cluster.placement.placement import Placement
from cluster.placement.types import Forecast, PlacementRequest
from cluster.replica_record import ReplicaLoad, ReplicaRecord
from cluster.tenants.fair_share import FairShare
from cluster.tenants.need import Need
from engine.scheduling.edf import most_on_time

dues = st.builds(EdfPrompt, st.floats(0.001, 1.0), st.floats(0.1, 4.0))
waits = st.lists(dues, max_size=12)


# The forecast of one more prompt.


@given(waits, dues, st.floats(0, 1), st.floats(0.001, 1))
def test_a_longer_prompt_fits_no_better_and_what_does_not_fit_ends_no_sooner(
    waiting, new, lead_s, more
):
    """One that fits may end sooner for being longer: fewer shorter ones have time before it."""
    longer = EdfPrompt(new.length + more, new.deadline_s)
    short, long = (forecast_prompt(waiting, one, lead_s, 0.0) for one in (new, longer))
    assert short.feasible or not long.feasible
    if not short.feasible:
        assert long.ends_s >= short.ends_s - 1e-9
    assert long.ends_s >= lead_s + longer.length - 1e-9


@given(waits, dues, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_margin_lets_no_more_in(waiting, new, lead_s, margin_s, more):
    small, large = (
        forecast_prompt(waiting, new, lead_s, 0.0, margin) for margin in (margin_s, margin_s + more)
    )
    assert small.feasible or not large.feasible


@given(waits, dues, dues, st.floats(0, 1))
def test_one_more_that_waits_is_more_work(waiting, another, new, lead_s):
    less, more = (
        forecast_prompt(them, new, lead_s, 0.0) for them in (waiting, [*waiting, another])
    )
    assert more.work_s >= less.work_s
    if _none_given_up_for(another, waiting, lead_s):
        assert less.feasible or not more.feasible


def _none_given_up_for(another, waiting, begin_s):
    """Whether all that could be in time can be so beside `another`."""
    kept, then = (most_on_time(them, begin_s) for them in (waiting, [*waiting, another]))
    return set(map(id, kept)) <= set(map(id, then))


# The verdict.

_RANK = {Admit: 0, Wait: 1, Refuse: 2}
forecasts = st.builds(
    lambda ttft_s, alone_s, work_s, step_s, short, requests: Forecast(
        ttft_s,
        1.0,
        alone_s=alone_s,
        work_s=work_s,
        feasible=ttft_s <= 1.0,
        step_s=step_s,
        itl_s=0.06,
        blocks_shortfall=short,
        requests=requests,
        interval_s=0.1,
    ),
    st.floats(0, 3),
    st.floats(0.001, 0.5),
    st.floats(0, 3),
    st.floats(0, 0.2),
    st.integers(0, 3),
    st.integers(0, 9),
)


@settings(deadline=None)
@given(forecasts, forecasts, st.floats(0, 1), st.booleans(), st.booleans())
def test_a_worse_forecast_gets_no_better_verdict(one, other, now, batch, promised):
    worse = Forecast(
        max(one.ttft_s, other.ttft_s),
        1.0,
        alone_s=one.alone_s,
        work_s=max(one.work_s, other.work_s),
        feasible=one.feasible and other.feasible,
        step_s=max(one.step_s, other.step_s),
        itl_s=0.06,
        blocks_shortfall=max(one.blocks_shortfall, other.blocks_shortfall),
        requests=max(one.requests, other.requests),
        interval_s=0.1,
    )
    ask = PlacementRequest(100, 132, budget_s=1.0, itl_s=0.06, batch=batch)
    ranks = [
        _RANK[type(Admission().judge(ask, found, now, promised=promised))] for found in (one, worse)
    ]
    assert ranks[0] <= ranks[1]


# The retries of refused requests.


def test_the_promised_retries_are_bounded():
    retries = RetrySchedule()
    times = [retries.promise(number, 0.01, 0.3, 1.0, 0.0) for number in range(10_000)]
    assert len(retries) < len(times)
    assert times == sorted(times)


# Tenants.


class TenantMachine(RuleBasedStateMachine):
    """Requests of two tenants wait, start and end; the caps are asked as the queue asks."""

    caps = TenantConfig(max_concurrent=3, max_waiting_tokens=1000)

    def __init__(self):
        super().__init__()
        self.fairness = FairShare({"default": self.caps})
        self.waiting, self.running = [], []

    @rule(tenant=st.sampled_from("ab"), tokens=st.integers(1, 700))
    def wait(self, tenant, tokens):
        if self.fairness.wait(tenant, Need(tokens=tokens)) is None:
            self.waiting.append((tenant, tokens))
        else:
            waiting = sum(size for name, size in self.waiting if name == tenant)
            assert waiting + tokens > self.caps.max_waiting_tokens

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def start(self, data):
        tenant, tokens = data.draw(st.sampled_from(self.waiting))
        # Work conserved: a tenant below its cap may start.
        allowed = Counter(self.running)[tenant] < self.caps.max_concurrent
        assert (self.fairness.cap(tenant, Need()) is None) == allowed
        if allowed:
            self.fairness.start(tenant, tokens)
            self.fairness.leave(tenant, Need(tokens=tokens))
            self.waiting.remove((tenant, tokens))
            self.running.append(tenant)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.integers(0, 300))
    def end(self, data, tokens):
        tenant = data.draw(st.sampled_from(self.running))
        before = self.fairness.served(tenant)
        self.fairness.end(tenant, tokens)
        self.running.remove(tenant)
        assert tenant not in self.running or self.fairness.served(tenant) >= before

    @invariant()
    def no_cap_is_exceeded_and_nothing_is_kept_of_nobody(self):
        for tenant in "ab":
            assert Counter(self.running)[tenant] <= self.caps.max_concurrent
            waiting = sum(size for name, size in self.waiting if name == tenant)
            assert waiting <= self.caps.max_waiting_tokens
        if not self.waiting and not self.running:
            assert len(self.fairness) == 0


TestTenants = TenantMachine.TestCase


@given(
    st.lists(st.integers(1, 500), min_size=30, max_size=80),
    st.floats(0.25, 8),
)
def test_two_that_always_wait_are_served_by_their_weights(sizes, weight):
    fairness = FairShare({"a": TenantConfig(weight=weight), "default": TenantConfig()})
    had = {"a": 0.0, "b": 0.0}
    weights = {"a": weight, "b": 1.0}
    for tenant in had:
        assert fairness.wait(tenant, Need(tokens=1)) is None
    for tokens in sizes:
        tenant = min(had, key=fairness.served)
        fairness.start(tenant, tokens)
        fairness.end(tenant, 0)
        had[tenant] += tokens
        apart = abs(had["a"] / weights["a"] - had["b"] / weights["b"])
        assert apart <= 500 / min(weights.values()) + 1e-6


# Where requests go.


def replica(name, role, blocks=60):
    load = ReplicaLoad(blocks_total=blocks, block_size=16)
    return ReplicaRecord(name, role, "", 1, load=load)


def assign(placement, prefill, decode, ask, now=0.0):
    plan = placement.plan(prefill, decode, ask, now)
    return plan, placement.add_load(plan, ask, now)


@pytest.mark.parametrize("batch", [False, True])
def test_prompts_spread_over_idle_replicas_of_every_lane(batch):
    prefill = [replica(f"p{n}", "prefill", 10_000) for n in range(3)]
    decode = [replica("d0", "decode", 10_000)]
    placement = Placement()
    # As it is when they have learned: no two cost exactly the same.
    for number, record in enumerate(prefill):
        for second in range(40):
            seconds = 0.1 + 0.001 * number
            placement.costs.prefill(record.id).learn(300, 0, seconds, float(second))
    ask = PlacementRequest(300, 320, budget_s=60.0, batch=batch)
    where = Counter(assign(placement, prefill, decode, ask)[0].pair.prefill.id for _ in range(9))
    assert where == {"p0": 3, "p1": 3, "p2": 3}


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 200)), min_size=1, max_size=30),
    st.floats(0.5, 3),
)
def test_admitted_requests_stay_within_the_promised_blocks(asks, overcommit):
    prefill, decode = [replica("p0", "prefill", 1000)], [replica("d0", "decode")]
    placement, admission = Placement(overcommit=overcommit), Admission()
    for prompt, new in asks:
        ask = PlacementRequest(prompt, prompt + new, budget_s=1e6)
        plan = placement.plan(prefill, decode, ask, 0.0)
        if isinstance(admission.judge(ask, plan.forecast, 0.0), Admit):
            placement.add_load(plan, ask, 0.0)
        # One alone is admitted whatever it needs: what fits no pool was refused before.
        if placement.load_tracker.requests(decode[0]) > 1:
            assert placement.load_tracker.blocks(decode[0]) <= overcommit * 60


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 800), st.booleans()), max_size=12),
    st.integers(1, 800),
    st.booleans(),
)
def test_more_that_is_assigned_makes_no_forecast_better(waiting, tokens, batch):
    """Of one pair of replicas, for prompts that all can be in time, so that none is given up."""
    prefill, decode = [replica("p0", "prefill", 1000)], [replica("d0", "decode", 1000)]
    placement = Placement()
    ask = PlacementRequest(tokens, tokens + 20, budget_s=600.0, itl_s=0.06, batch=batch)
    before = placement.plan(prefill, decode, ask, 0.0).forecast
    for prompt, is_batch in waiting:
        other = PlacementRequest(prompt, prompt + 20, budget_s=600.0, itl_s=0.06, batch=is_batch)
        assign(placement, prefill, decode, other)
        after = placement.plan(prefill, decode, ask, 0.0).forecast
        assert after.work_s >= before.work_s - 1e-9
        assert after.step_s >= before.step_s and after.blocks_shortfall >= before.blocks_shortfall
        assert after.requests == before.requests + 1
        before = after
