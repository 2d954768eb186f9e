"""Canaries: rolled back when beyond the guard, never before enough was seen, and for good."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.admission.refusals import Refused, is_fault
from cluster.config.canary import CanaryConfig, GuardConfig
from cluster.config.endpoints import EndpointConfig
from cluster.config.schema import TandemConfig, load_config, parse_config
from cluster.router.canary.judge import ArmStats, CanaryJudge, verdict
from cluster.router.canary.routing import CanaryRouting
from engine.errors import Cancelled, ConfigError, InvalidRequest, Overloaded, ReplicaLost

GUARD = GuardConfig(ttft_p95_ratio=1.5, error_rate=0.1, min_requests=5, window_s=60)
OUTCOME = st.tuples(
    st.sampled_from(["stable", "canary"]),
    st.floats(0, 3),
    st.one_of(st.none(), st.floats(0.01, 2.0)),
    st.booleans(),
)


def p95(times):
    """The smallest that at least 95 % are not above."""
    return min(t for t in times if 20 * sum(u <= t for u in times) >= 19 * len(times))


@given(st.lists(OUTCOME, max_size=60), st.integers(1, 12), st.floats(1, 60))
def test_it_is_rolled_back_exactly_when_what_was_seen_is_beyond_the_guard(seen, least, window_s):
    guard = replace(GUARD, min_requests=least, window_s=window_s)
    canary, now, arms = (
        CanaryJudge(CanaryConfig("other", 0.5, guard)),
        0.0,
        {"stable": [], "canary": []},
    )
    for arm, pause_s, ttft_s, failed in seen:
        now += pause_s
        canary.note(arm, now, ttft_s, failed=failed)
        arms[arm].append((now, ttft_s, failed))
        recent = {
            name: [one for one in all_ if one[0] >= now - window_s] for name, all_ in arms.items()
        }
        reason = canary.judge(now)
        if min(map(len, recent.values())) < least:
            assert reason is None
            continue
        rates = {name: sum(one[2] for one in all_) / len(all_) for name, all_ in recent.items()}
        times = {name: [one[1] for one in all_ if one[1]] for name, all_ in recent.items()}
        worse = rates["canary"] > rates["stable"] + guard.error_rate
        timed = min(map(len, times.values())) >= least
        slower = timed and p95(times["canary"]) > guard.ttft_p95_ratio * p95(times["stable"])
        assert (reason is not None) == (worse or slower)


@given(st.integers(5, 500), st.integers(0, 500), st.floats(0.01, 2))
def test_arms_that_do_alike_stay(requests, failed, ttft_s):
    seen = ArmStats(requests, min(failed, requests), requests, ttft_s)
    assert verdict(GUARD, seen, seen) is None


@given(st.integers(5, 200), st.floats(0.01, 2), st.floats(1.6, 9))
def test_slower_and_failing_is_never_better(requests, ttft_s, times):
    """What is beyond the guard stays so when the canary does even worse."""
    stable = ArmStats(requests, 0, requests, ttft_s)
    assert verdict(GUARD, stable, ArmStats(requests, 0, requests, times * ttft_s)) is not None
    assert verdict(GUARD, stable, ArmStats(requests, requests, 0, None)) is not None


def test_the_reason_has_times_as_every_screen_has_them():
    slow = ArmStats(40, 0, 40, 1.25)
    reason = verdict(GUARD, ArmStats(60, 0, 60, 0.61), slow)
    assert reason == "TTFT p95 was 1.25 s of 40 requests, 610 ms elsewhere"


@given(st.floats(0.02, 0.98), st.text(max_size=4))
def test_a_share_is_drawn_by_request_and_the_same_everywhere(share, salt):
    here, there = (CanaryJudge(CanaryConfig("other", share), salt) for _ in range(2))
    drawn = [here.arm("acme", f"r-{number}") for number in range(800)]
    assert drawn == [there.arm("acme", f"r-{number}") for number in range(800)]
    assert abs(drawn.count("canary") / 800 - share) < 0.1


ENDPOINTS = {
    "chat": EndpointConfig(canary=CanaryConfig("next", 0.5, GUARD)),
    "next": EndpointConfig(ttft_budget_ms=250),
    "report": EndpointConfig(),
}


def routes(canaries, count=40):
    return [canaries.route("chat", "acme", f"r-{number}") for number in range(count)]


def failing(canaries):
    for route in routes(canaries):
        canaries.ended(route, "ok", 0.1, failed=route.arm == "canary")
        yield


def test_a_bad_canary_is_rolled_back_in_all_routers_and_stays_so(caplog):
    clock = [0.0]
    here, there = (CanaryRouting(ENDPOINTS, "", lambda: clock[0]) for _ in range(2))
    assert {route.served_as for route in routes(here)} == {"chat", "next"}
    assert here.route("report", "acme", "r").arm is None
    caplog.set_level(logging.WARNING)
    for _ in failing(here):
        clock[0] += 0.2
    assert {(route.served_as, route.arm) for route in routes(here)} == {("chat", "stable")}
    assert [record.message for record in caplog.records] == ["canary rolled back"]
    there.receive(here.publish())
    there.receive(here.publish())
    assert {route.served_as for route in routes(there)} == {"chat"}
    assert there.publish() == here.publish() and "failed" in there.states()[0].reason
    clock[0] += 10_000
    assert {route.served_as for route in routes(here)} == {"chat"}
    # A changed configuration is another canary.
    changed = {**ENDPOINTS, "next": EndpointConfig(ttft_budget_ms=300)}
    fresh = CanaryRouting(changed, "", lambda: clock[0])
    fresh.receive(here.publish())
    assert fresh.states()[0].reason is None
    assert {route.served_as for route in routes(fresh)} == {"chat", "next"}


def test_faults_of_the_service_are_told_from_other_errors():
    assert is_fault(ReplicaLost("x")) and is_fault(Overloaded("x"))
    assert is_fault(Refused("x", reason="ttft"))
    assert not is_fault(Refused("x", reason="tenant_concurrent"))
    assert not is_fault(Refused("x", reason="starting"))
    assert not is_fault(InvalidRequest("x")) and not is_fault(Cancelled("x"))


@pytest.mark.parametrize(
    ("canary", "message"),
    [
        ("{endpoint: none}", "no endpoint 'none'"),
        ("{endpoint: chat}", "another endpoint"),
        ("{endpoint: both}", "a canary itself"),
        ("{endpoint: next, share: 1.0}", "share"),
        ("{endpoint: next, guard: {min_requests: 0}}", "min_requests"),
        ("{endpoint: next, guard: {ttft_p95_ratio: 0.5}}", "ttft_p95_ratio"),
        ("{share: 0.5}", "endpoint"),
    ],
)
def test_a_wrong_canary_is_refused_by_name(tmp_path, canary, message):
    file = tmp_path / "tandem.yaml"
    others = "next: {}, both: {canary: {endpoint: next}}"
    file.write_text(f"endpoints: {{chat: {{canary: {canary}}}, {others}}}")
    with pytest.raises(ConfigError, match=message):
        load_config(file)


def test_a_canary_survives_its_way_through_plain_data():
    config = replace(TandemConfig(), endpoints=ENDPOINTS)
    assert parse_config(config.to_dict()) == config
