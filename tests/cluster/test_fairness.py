"""Fair tenants: caps hold, service follows weights, nobody saves up, nobody starves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.fairness import Fairness, TenantConfig

TENANTS = ("a", "b", "c")


def test_the_one_that_had_less_goes_first_by_weight():
    fairness = Fairness({"a": TenantConfig(weight=2.0), "default": TenantConfig()})
    for tenant in ("a", "b"):
        fairness.wait(tenant, 100)
    for tenant in ("a", "b"):
        fairness.start(tenant, 100)
    assert (fairness.served("a"), fairness.served("b")) == (50, 100)
    fairness.end("b", 10)
    assert fairness.served("b") == 120


def test_who_was_away_has_saved_up_nothing_and_who_left_owes_still():
    fairness = Fairness({})
    for tenant in ("a", "b"):
        fairness.wait(tenant, 1)
    for tenant in ("a", "b"):
        fairness.start(tenant, 1000)
        fairness.leave(tenant, 1)
    fairness.start("b", 500)
    assert fairness.served("new") == 1000
    fairness.end("b", 0)
    fairness.end("b", 0)
    assert fairness.served("b") == 1500
    fairness.start("b", 100)
    assert fairness.served("b") == 1600


def test_once_nobody_is_here_nothing_is_remembered():
    fairness = Fairness({})
    fairness.start("a", 1000)
    fairness.end("a", 5)
    assert len(fairness) == 0


@pytest.mark.parametrize("name", ["a", "unknown"])
def test_caps_are_those_of_the_tenant_or_of_default(name):
    caps = TenantConfig(max_concurrent=2, max_waiting_tokens=100)
    fairness = Fairness({"default": caps, "a": caps})
    assert fairness.cap(name, 2) is None and fairness.cap(name, 3) == "tenant_concurrent"
    assert fairness.wait(name, 60) is None
    assert fairness.wait(name, 60) == "tenant_waiting"
    fairness.leave(name, 60)
    assert fairness.wait(name, 100) is None


@given(st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(1, 900)), max_size=80))
def test_whatever_comes_the_waiting_tokens_stay_below_their_cap_and_go(asks):
    fairness = Fairness({"default": TenantConfig(max_waiting_tokens=1000)})
    waiting = []
    for tenant, tokens in asks:
        if fairness.wait(tenant, tokens) is None:
            waiting.append((tenant, tokens))
        for name in TENANTS:
            assert sum(size for who, size in waiting if who == name) <= 1000
    for tenant, tokens in waiting:
        fairness.leave(tenant, tokens)
    assert len(fairness) == 0


@given(
    st.lists(st.integers(1, 500), min_size=30, max_size=80),
    st.lists(st.integers(1, 500), min_size=30, max_size=80),
)
def test_two_that_always_wait_are_served_alike(first, second):
    """Their difference stays below two of the largest requests (the paper's bound)."""
    fairness, left = Fairness({}), {"a": list(first), "b": list(second)}
    for tenant in left:
        assert fairness.wait(tenant, 1) is None
    had = dict.fromkeys(left, 0)
    while all(left.values()):
        tenant = min(left, key=fairness.served)
        tokens = left[tenant].pop()
        fairness.start(tenant, tokens)
        fairness.end(tenant, 0)
        had[tenant] += tokens
        assert abs(had["a"] - had["b"]) <= 2 * 500
