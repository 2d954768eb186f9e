"""Fair tenants: caps hold, service follows weights, no tenant saves up service or starves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.config.tenant_limits import TenantConfig
from cluster.tenants.cap_shares import CapUse
from cluster.tenants.fair_share import FairShare
from cluster.tenants.need import Need
from engine.errors import InvalidRequest

TENANTS = ("a", "b", "c")


def test_the_one_that_had_less_goes_first_by_weight():
    fairness = FairShare({"a": TenantConfig(weight=2.0), "default": TenantConfig()})
    for tenant in ("a", "b"):
        fairness.wait(tenant, Need(tokens=100))
    for tenant in ("a", "b"):
        fairness.start(tenant, 100)
    assert (fairness.served("a"), fairness.served("b")) == (50, 100)
    fairness.end("b", 10)
    assert fairness.served("b") == 120


def test_an_absent_tenant_saves_up_no_service_and_keeps_its_charges():
    fairness = FairShare({})
    for tenant in ("a", "b"):
        fairness.wait(tenant, Need(tokens=1))
    for tenant in ("a", "b"):
        fairness.start(tenant, 1000)
        fairness.leave(tenant, Need(tokens=1))
    fairness.start("b", 500)
    assert fairness.served("new") == 1000
    fairness.end("b", 0)
    fairness.end("b", 0)
    assert fairness.served("b") == 1500
    fairness.start("b", 100)
    assert fairness.served("b") == 1600


def test_without_present_tenants_no_counter_is_kept():
    fairness = FairShare({})
    fairness.start("a", 1000)
    fairness.end("a", 5)
    assert len(fairness) == 0


@pytest.mark.parametrize("name", ["a", "unknown"])
def test_caps_are_those_of_the_tenant_or_of_default(name):
    caps = TenantConfig(max_concurrent=2, max_waiting_tokens=100)
    fairness = FairShare({"default": caps, "a": caps})
    assert (
        fairness.cap(name, Need(2)) is None and fairness.cap(name, Need(3)) == "tenant_concurrent"
    )
    assert fairness.wait(name, Need(tokens=60)) is None
    assert fairness.wait(name, Need(tokens=60)) == "tenant_waiting"
    fairness.leave(name, Need(tokens=60))
    assert fairness.wait(name, Need(tokens=100)) is None


@given(st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(1, 900)), max_size=80))
def test_whatever_comes_the_waiting_tokens_stay_below_their_cap_and_go(asks):
    fairness = FairShare({"default": TenantConfig(max_waiting_tokens=1000)})
    waiting = []
    for tenant, tokens in asks:
        if fairness.wait(tenant, Need(tokens=tokens)) is None:
            waiting.append((tenant, tokens))
        for name in TENANTS:
            assert sum(size for tenant, size in waiting if tenant == name) <= 1000
    for tenant, tokens in waiting:
        fairness.leave(tenant, Need(tokens=tokens))
    assert len(fairness) == 0


@given(
    st.lists(st.integers(1, 500), min_size=30, max_size=80),
    st.lists(st.integers(1, 500), min_size=30, max_size=80),
)
def test_two_that_always_wait_are_served_alike(first, second):
    """Their difference stays below two of the largest requests (the paper's bound)."""
    fairness, left = FairShare({}), {"a": list(first), "b": list(second)}
    for tenant in left:
        assert fairness.wait(tenant, Need(tokens=1)) is None
    had = dict.fromkeys(left, 0)
    while all(left.values()):
        tenant = min(left, key=fairness.served)
        tokens = left[tenant].pop()
        fairness.start(tenant, tokens)
        fairness.end(tenant, 0)
        had[tenant] += tokens
        assert abs(had["a"] - had["b"]) <= 2 * 500


def test_what_may_be_needed_of_the_kv_cache_is_capped_until_the_request_ends():
    caps = TenantConfig(max_kv_tokens=100)
    fairness = FairShare({"default": caps})
    assert fairness.cap("a", Need(kv_tokens=100)) is None
    fairness.start("a", 10, 60)
    assert fairness.cap("a", Need(kv_tokens=41)) == "tenant_kv"
    assert fairness.cap("a", Need(kv_tokens=40)) is None
    assert fairness.cap("b", Need(kv_tokens=100)) is None
    fairness.end("a", 5, 60)
    assert fairness.cap("a", Need(kv_tokens=100)) is None


@pytest.mark.parametrize("need", [Need(3), Need(kv_tokens=101)])
def test_a_request_that_exceeds_a_cap_alone_is_invalid(need):
    fairness = FairShare({"default": TenantConfig(max_concurrent=2, max_kv_tokens=100)})
    fairness.check("a", Need(2, 10**6, 100))
    with pytest.raises(InvalidRequest):
        fairness.check("a", need)


class Halves:
    def limit(self, key, whole):
        return whole // 2


def test_what_may_be_used_here_is_the_limit_and_not_the_cap():
    caps = TenantConfig(max_concurrent=4, max_waiting_tokens=10, max_kv_tokens=50)
    fairness = FairShare({"default": caps}, Halves())
    assert fairness.cap("a", Need(2, kv_tokens=25)) is None
    assert fairness.cap("a", Need(3)) == "tenant_concurrent"
    assert fairness.cap("a", Need(kv_tokens=26)) == "tenant_kv"
    assert fairness.wait("a", Need(tokens=6)) == "tenant_waiting"
    uses, _, here = fairness.publish()
    assert uses == {("a", "waiting_tokens"): CapUse(0, 6)} and not here
    assert [bool(fairness.publish()[0]) for _ in range(10)] == [True] * 9 + [False]


def test_the_used_and_wanted_amounts_are_published():
    fairness = FairShare({})
    fairness.start("a", 10, 60)
    fairness.wait("a", Need(2, 30, 80))
    uses, charged, here = fairness.publish()
    assert uses == {
        ("a", "concurrent"): CapUse(1, 3),
        ("a", "waiting_tokens"): CapUse(30, 30),
        ("a", "kv_tokens"): CapUse(60, 140),
    }
    assert charged == {"a": 10} and here == {"a"}


def test_a_tenant_that_is_served_elsewhere_has_been_served():
    fairness = FairShare({})
    fairness.receive({"r": {"a": 0}}, {"a"})
    fairness.receive({"r": {"a": 500}}, {"a"})
    assert fairness.served("a") == 500
    # Who comes now begins where the others are, as if they were here.
    fairness.wait("b", Need())
    assert fairness.served("b") == 500
    fairness.receive({"r": {"a": 900}}, {"a"})
    assert (fairness.served("a"), fairness.served("b")) == (900, 500)
    fairness.leave("b", Need())
    fairness.receive({}, ())
    assert len(fairness) == 0


@given(st.data())
def test_a_tenant_of_two_routers_is_not_served_twice(data):
    """Tenant `both` waits at each of two routers, `one` at the first only.

    Served by turns, an exchange after each `every`-th: the difference stays within the largest
    requests and what was served between two exchanges.
    """
    routers = {"r": FairShare({}), "s": FairShare({})}
    every = data.draw(st.integers(1, 6))
    had, largest = {"both": 0, "one": 0}, 100
    for name, fairness in routers.items():
        for tenant in ("both", "one") if name == "r" else ("both",):
            fairness.wait(tenant, Need(tokens=1))

    def exchange():
        published = {name: fairness.publish() for name, fairness in routers.items()}
        for name, fairness in routers.items():
            other = "s" if name == "r" else "r"
            fairness.receive({other: published[other][1]}, published[other][2])

    exchange()
    exchange()
    for turn in range(120):
        name = "rs"[turn % 2]
        fairness = routers[name]
        waiting = ("both", "one") if name == "r" else ("both",)
        tenant = min(waiting, key=fairness.served)
        tokens = data.draw(st.integers(1, largest)) if name == "s" else largest
        fairness.start(tenant, tokens)
        fairness.end(tenant, 0)
        had[tenant] += tokens
        if turn % every == 0:
            exchange()
        assert abs(had["both"] - had["one"]) <= (2 + every) * largest


def test_use_and_caps_are_shown_of_known_tenants_and_of_configured_ones():
    fairness = FairShare({"a": TenantConfig(max_concurrent=4, weight=2.0), "b": TenantConfig()})
    fairness.wait("c", Need(tokens=7))
    fairness.start("a", 100, 30)
    before = fairness.served("b")
    shown = fairness.shown(["a", "b"])
    assert list(shown) == ["a", "b", "c"]
    assert shown["a"]["caps"]["concurrent"] == {"used": 1, "here": 4, "cap": 4}
    assert shown["a"]["caps"]["kv_tokens"] == {"used": 30, "here": None, "cap": None}
    assert (shown["a"]["weight"], shown["a"]["served"]) == (2.0, 50.0)
    assert (shown["c"]["waiting_requests"], shown["c"]["caps"]["waiting_tokens"]["used"]) == (1, 7)
    assert fairness.served("b") == before
    assert len(fairness) == 2
