"""The cause of a rise as it is named: never one in calm traffic, and each kind where it is."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.console.rise.slow_span import joined
from cluster.console.ttft_sample import STAGES
from tests.cluster.console.rise.made_traffic import (
    BEGIN,
    ENDPOINTS,
    answers_of,
    burst,
    burst_and_slow_replica,
    calm,
    capped_tenant,
    full_kv,
    late_router,
    lost_replica,
    new_replicas,
    rises,
    slow_replica,
    two_rises,
    with_stages,
)

seeds = st.integers(0, 10**6)
begins, lengths = st.integers(60, 600), st.integers(90, 300)
# Chance makes a rise of one calm hour in some hundreds, so the examples are the same in each run.
few = settings(max_examples=10, deadline=None, derandomize=True)


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
        assert "hit most" not in one.words
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
        assert one.facts["stage"].startswith("the router wait for KV blocks (")


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
        told = "only prefill#0 had" if replicas == 1 else "none of 2 prefill replicas stands out"
        assert told in one.facts["replica"]
        assert "No tenant sent much more than usual." in one.words
    assert len(rises(slow)) == 2


@few
@given(seeds, begins, lengths)
def test_a_slow_replica_and_a_burst_are_both_named(seed, begin, length):
    found = rises(burst_and_slow_replica(seed, begin, begin + length))
    assert found
    for one in found:
        assert (one.cause.replica, one.cause.tenant) == ("prefill#1", "initech")
        assert "One prefill replica was slow: prefill#1 (" in one.words
        assert "One tenant sent more: initech (it sent " in one.words


@few
@given(seeds, begins, lengths)
def test_a_lost_replica_is_named(seed, begin, length):
    found = rises(lost_replica(seed, begin, begin + length))
    assert found
    for one in found:
        assert (one.cause.pool, one.cause.replica) == ("prefill", "prefill#1")
        assert "One prefill replica was lost: prefill#1 (" in one.words
        assert one.facts["stage"].startswith("failover (")


@few
@given(seeds, begins, lengths)
def test_a_late_router_is_named(seed, begin, length):
    found = rises(late_router(seed, begin, begin + length))
    assert len(found) == len(ENDPOINTS)
    for one in found:
        assert (one.cause.pool, one.cause.replica, one.cause.tenant) == ("router", "", "")
        assert "the router was late to read and tokenise them" in one.words
        assert "router.replicas" in one.advice


@few
@given(seeds, begins, lengths)
def test_a_tenant_at_its_cap_is_named_and_its_cap(seed, begin, length):
    found = rises(capped_tenant(seed, begin, begin + length))
    assert found
    for one in found:
        assert (one.cause.capped, one.cause.reason) == ("globex", "tenant_concurrent")
        assert "Its cap of running requests holds back globex." in one.words
        assert "tenants.globex.max_concurrent" in one.advice


@few
@given(seeds, begins, lengths)
def test_new_replicas_are_said_to_be_new(seed, begin, length):
    found = rises(new_replicas(seed, begin, begin + length))
    assert len(found) == len(ENDPOINTS)
    for one in found:
        assert (one.cause.fresh, one.cause.replica) == (True, "")
        assert "prefill replicas stands out; most requests were on new ones." in one.words


@few
@given(seeds, st.integers(60, 300), st.integers(240, 400))
def test_two_rises_with_calm_between_are_told_apart(seed, begin, length):
    found = rises(two_rises(seed, begin, begin + length))
    assert len(found) == len(ENDPOINTS)
    for one in found:
        assert abs(one.begin - BEGIN - (begin + length - 60)) <= 20
        (first,) = one.also
        assert abs(first.begin - BEGIN - begin) <= 20 and abs(first.end - first.begin - 60) <= 40
        assert "has been high for" in one.words and " before, too, for " in one.words


@few
@given(seeds, st.integers(15, 40), lengths)
def test_a_rise_at_the_begin_of_the_window_is_told(seed, length, calm_s):
    late = slow_replica(seed, 0, length + 60)
    samples = [*late, *(one for one in calm(seed, length + 60 + calm_s) if one.at > late[-1].at)]
    for one in rises(samples):
        assert one.begin - BEGIN <= 40
        assert (one.cause.replica, one.cause.tenant) in (("prefill#1", ""), ("", ""))


@pytest.mark.parametrize("usual_s", [5, 8])
def test_little_time_beside_makes_no_tenant_a_sender(usual_s):
    samples = [*calm(2, usual_s), *(replace(one, at=one.at + usual_s) for one in late_calm(60))]
    for one in rises(samples):
        assert one.cause.tenant == ""
        assert "in the mean of only" in one.words


def late_calm(seconds):
    return [with_stages(one, prefill_queue=1.0) for one in calm(3, seconds)]


def test_few_requests_of_an_endpoint_are_explained_by_themselves():
    samples = full_kv(1, 300, 600)
    seldom = [replace(one, endpoint="seldom") for one in calm(2, 600, rate=0.05)]
    samples = sorted([*samples, *seldom], key=lambda one: one.at)
    assert {one.endpoint for one in rises(samples)} == set(ENDPOINTS)


def test_longer_answers_are_said_where_kv_blocks_are_short():
    samples = full_kv(1, 300, 600)
    answers = answers_of(samples, 300, 600, 500)
    for one in rises(samples, answers):
        assert "Answers were longer: " in one.words and "; initech has " in one.words
        assert one.facts["answers"].endswith("of the tokens")
    for one in rises(samples, answers_of(samples, 300, 600, 24)):
        assert "nswers were longer" not in one.words


def test_a_load_is_counted_where_it_is_said_to_be():
    for one in rises(burst(1, 300, 500)):
        assert " times its usual prompt tokens to completions)" in one.facts["tenant"]
    alone = [one for one in burst(1, 300, 500) if one.endpoint == "completions"]
    for one in rises(alone):
        assert one.facts["tenant"].endswith(" times its usual prompt tokens)")


def test_a_tenant_that_is_new_sent_nothing_before():
    samples = burst(1, 300, 500)
    samples = [
        replace(one, tenant="hooli" if one.prompt_tokens == 1500 else one.tenant) for one in samples
    ]
    for one in rises(samples):
        assert "One tenant sent more: hooli (it sent nothing to completions before)." in one.words


def test_the_end_is_never_behind_the_present():
    samples = slow_replica(3, 200, 301)
    for one in rises(samples):
        assert one.end <= samples[-1].at
        length = re.search(r"has been high for (\d+) s", one.words)
        assert length and abs(float(length[1]) - (one.end - one.begin)) <= 0.5


def test_after_a_rise_without_traffic_nothing_is_said_to_be_as_usual():
    for one in rises(slow_replica(3, 200, 300), after_s=240):
        assert "until 4 min ago; no first token came since: " in one.words


def test_no_slow_time_of_another_endpoint_is_usual_for_a_tenant():
    samples = burst(1, 300, 500)
    samples = [
        one
        if one.endpoint != "chat" or one.at - BEGIN < 440
        else with_stages(one, prefill_queue=0.005)
        for one in samples
    ]
    words = {one.endpoint: one for one in rises(samples)}
    assert words["chat"].end < words["completions"].end
    assert all("One tenant sent more: initech (" in one.words for one in words.values())


def test_spans_that_overlap_are_one():
    assert joined([(5.0, 6.0), (1.0, 3.0), (2.0, 4.0), (6.0, 7.0)]) == [(1.0, 4.0), (5.0, 7.0)]
    assert joined([(1.0, 9.0), (2.0, 3.0)]) == [(1.0, 9.0)]
    assert joined([]) == []
