"""The cause of a rise as it is named: never one in calm traffic, and each kind where it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.console.ttft_rise import rises
from cluster.console.ttft_sample import STAGES
from tests.cluster.console.made_traffic import BEGIN, ENDPOINTS, burst, calm, full_kv, slow_replica

seeds = st.integers(0, 10**6)
begins, lengths = st.integers(60, 600), st.integers(90, 300)
# Chance makes a rise of one calm hour in some hundreds, so the examples are the same in each run.
few = settings(max_examples=25, deadline=None, derandomize=True)


@few
@given(seeds, st.sampled_from([30, 120, 900]), st.sampled_from([0.3, 3.0]))
def test_calm_traffic_has_no_rise(seed, seconds, rate):
    assert rises(calm(seed, seconds, rate)) == []


def test_a_few_late_first_tokens_are_no_rise():
    samples = calm(1)
    late = {300: 9.0, 301: 7.0, 302: 8.0}
    samples = [
        replace(one, ttft_s=late.get(index, one.ttft_s)) for index, one in enumerate(samples)
    ]
    assert rises(samples) == []


@few
@given(seeds, begins, lengths)
def test_a_slow_replica_is_named(seed, begin, length):
    found = rises(slow_replica(seed, begin, begin + length))
    # With few requests one endpoint alone may be beyond chance.
    assert found
    for one in found:
        assert (one.cause.pool, one.cause.replica) == ("prefill", "prefill#1")
        assert one.cause.stages[0] == "prefill"
        assert abs(one.begin - BEGIN - begin) <= 60
        assert "prefill replica was slow: prefill#1 (" in one.words
        assert "has been high" in one.words
        assert one.end <= BEGIN + begin + length


@few
@given(seeds, begins, lengths)
def test_a_burst_names_its_tenant_and_no_replica(seed, begin, length):
    found = rises(burst(seed, begin, begin + length))
    assert {one.endpoint for one in found} == set(ENDPOINTS)
    for one in found:
        assert (one.cause.pool, one.cause.replica, one.cause.tenant) == ("prefill", "", "initech")
        assert one.cause.stages[0] == "prefill_queue"
        assert "One tenant sent more: initech (" in one.words


@few
@given(seeds)
def test_a_burst_that_gets_worse_is_one_rise(seed):
    samples = []
    for one in burst(seed, 120, 320):
        if one.at - BEGIN > 220:
            stages = dict(zip(STAGES, one.stages, strict=True))
            stages["prefill_queue"] *= 8
            one = replace(one, ttft_s=sum(stages.values()), stages=tuple(stages.values()))
        samples.append(one)
    found = rises(samples)
    assert {one.endpoint for one in found} == set(ENDPOINTS)
    for one in found:
        assert one.cause.tenant == "initech"
        assert abs(one.begin - BEGIN - 120) <= 20


@few
@given(seeds, begins, lengths)
def test_a_full_kv_pool_is_named_and_no_replica(seed, begin, length):
    found = rises(full_kv(seed, begin, begin + length))
    assert found
    for one in found:
        assert (one.cause.pool, one.cause.replica, one.cause.tenant) == ("decode", "", "")
        assert (one.cause.stages[0], one.cause.reason) == ("admission", "kv_blocks")
        assert "The decode pool is nearly full" in one.words
        assert one.facts["stage"].startswith("the wait in the router for KV blocks (")


def test_a_rise_that_is_over_is_told_so():
    samples = [*slow_replica(3, 200, 300)]
    samples += [one for one in calm(4) if one.at - BEGIN > 300]
    for one in rises(samples):
        assert "and is as usual now" in one.words
    assert rises(samples)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_pool_that_is_slow_as_a_whole_names_no_replica(replicas):
    samples = [
        replace(one, replica=f"prefill#{index % replicas}") for index, one in enumerate(calm(5))
    ]
    slow = [
        replace(one, ttft_s=one.ttft_s + 0.3, stages=(*one.stages[:3], one.stages[3] + 0.3, 0.001))
        if one.at - BEGIN > 600
        else one
        for one in samples
    ]
    for one in rises(slow):
        assert one.cause.replica == one.cause.tenant == ""
        told = "the only one with requests" if replicas == 1 else "both prefill replicas"
        assert told in one.facts["replica"]
        assert "No tenant sent much more than usual." in one.words
    assert len(rises(slow)) == 2
