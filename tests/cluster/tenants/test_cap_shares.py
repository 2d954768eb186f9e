"""Shared caps: N routers that exchange now and then, in any order, never exceed one together."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.tenants.cap_shares import ALONE_S, GONE_S, CapShares, CapUse, PeerCapUse, fair

KEY = ("acme", "concurrent")
NAMES = ("a", "b", "c", "d")


class Store:
    """What Redis does: publish and read at one instant."""

    def __init__(self):
        self.published = {}

    def exchange(self, name, published):
        self.published[name] = published
        return dict(self.published)


class Router:
    """A router that admits within its limit, and knows what it would like to run."""

    def __init__(self, name, whole):
        self.shares = CapShares(name, lambda key: whole)
        self.name, self.whole = name, whole
        self.used = 0
        self.waiting = 0

    def limit(self):
        return self.shares.limit(KEY, self.whole)

    def admit(self, most):
        taken = max(0, min(most, self.limit() - self.used))
        self.used += taken
        return taken

    def exchange(self, store, now, turn=0):
        use = CapUse(self.used, self.used + self.waiting)
        published = self.shares.publish({KEY: use} if use.wants else {}, turn)
        for name in self.shares.receive(store.exchange(self.name, published), now):
            store.published.pop(name, None)

    def lose(self, store, now, arrives):
        """An exchange whose answer is lost; what was published may have arrived."""
        use = CapUse(self.used, self.used + self.waiting)
        published = self.shares.publish({KEY: use} if use.wants else {})
        if arrives:
            store.exchange(self.name, published)
        self.shares.miss(now)


def settled(names, whole, store, now=0.0):
    routers = [Router(name, whole) for name in names]
    for _ in range(4):
        for router in routers:
            router.exchange(store, now)
    assert all(router.shares.settled for router in routers)
    return routers


ROUTER = st.integers(0, 3)
STEP = st.one_of(
    st.tuples(st.just("admit"), ROUTER, st.integers(1, 12)),
    st.tuples(st.just("end"), ROUTER, st.integers(1, 12)),
    st.tuples(st.just("wait"), ROUTER, st.integers(0, 12)),
    st.tuples(st.just("exchange"), ROUTER, st.integers(0, 3)),
    st.tuples(st.just("lose"), ROUTER, st.integers(0, 1)),
)


@settings(max_examples=400)
@given(st.integers(1, 20), st.integers(1, 4), st.lists(STEP, max_size=120))
def test_a_cap_is_never_exceeded_while_exchanges_come_through_in_time(whole, count, steps):
    """Routers join at any time, exchanges are lost for less than `ALONE_S`."""
    store, now = Store(), 0.0
    routers = [Router(name, whole) for name in NAMES[:count]]
    heard = dict.fromkeys(NAMES, 0.0)
    for what, number, amount in steps:
        router = routers[number % count]
        now += 0.05
        for other in routers:
            if now - heard[other.name] > ALONE_S - 0.1 and other.shares.routers > 1:
                other.exchange(store, now)
                heard[other.name] = now
        if what == "admit":
            router.admit(amount)
        elif what == "end":
            router.used = max(0, router.used - amount)
        elif what == "wait":
            router.waiting = amount
        elif what == "exchange":
            router.exchange(store, now, amount)
            heard[router.name] = now
        else:
            router.lose(store, now, arrives=amount == 1)
        if not any(one.shares.alone for one in routers):
            assert sum(one.limit() for one in routers) <= whole
            assert sum(one.used for one in routers) <= whole


@given(st.integers(1, 40), st.lists(st.integers(0, 50), min_size=1, max_size=4))
def test_a_free_share_goes_to_a_wanting_router_within_a_few_exchanges(whole, wants):
    store = Store()
    routers = settled(NAMES[: len(wants)], whole, store)
    for router, wanted in zip(routers, wants, strict=True):
        router.waiting = wanted
    for _ in range(8):
        for router in routers:
            router.exchange(store, 1.0)
    granted = fair(whole, {one.name: one.waiting for one in routers})
    assert [one.limit() for one in routers] == [granted[one.name] for one in routers]
    assert sum(min(one.limit(), one.waiting) for one in routers) == min(whole, sum(wants))


@given(st.integers(1, 20), st.integers(2, 4), st.data())
def test_an_isolated_router_exceeds_a_cap_by_its_own_share_at_most(whole, count, data):
    """The bound that the module's text gives, with one router cut off from all others."""
    store, now = Store(), 0.0
    routers = settled(NAMES[:count], whole, store)
    lost, others = routers[0], routers[1:]
    lost.waiting = data.draw(st.integers(0, 2 * whole))
    for _ in range(4):
        for router in routers:
            router.exchange(store, now)
    own = max(lost.limit(), 1, whole // count)
    for _ in range(100):
        now += 0.25
        lost.lose(store, now, arrives=False)
        lost.admit(data.draw(st.integers(0, whole)))
        for router in others:
            router.waiting = whole
            router.exchange(store, now)
            router.admit(whole)
        assert lost.used <= own
        assert sum(one.used for one in others) <= whole
        if now <= ALONE_S:
            assert sum(one.used for one in routers) <= whole
    assert lost.shares.alone and sum(one.limit() for one in others) == whole


@given(st.integers(1, 20), st.integers(1, 4), st.data())
def test_without_a_store_each_goes_on_and_then_has_an_even_share(whole, count, data):
    store = Store()
    routers = settled(NAMES[:count], whole, store)
    for router in routers:
        router.waiting = data.draw(st.integers(0, whole))
    for _ in range(8):
        for router in routers:
            router.exchange(store, 0.0)
    before = {one.name: one.limit() for one in routers}
    now = 0.0
    while now < GONE_S:
        now += 0.5
        for router in routers:
            router.lose(store, now, arrives=False)
            if now <= ALONE_S:
                assert router.limit() == before[router.name]
    assert [one.limit() for one in routers] == [max(1, whole // count)] * count
    # It is back, and has forgotten everything: no router takes the others for gone.
    store.published.clear()
    for router in data.draw(st.permutations(routers)):
        router.waiting = whole
        router.exchange(store, now)
    for _ in range(6):
        now += 0.2
        for router in data.draw(st.permutations(routers)):
            router.exchange(store, now)
        if whole >= count:
            assert sum(one.limit() for one in routers) <= whole
    assert sum(one.limit() for one in routers) == whole


@given(
    st.integers(0, 50),
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 60), min_size=1),
    st.integers(0, 9),
)
def test_fair_shares_are_max_min(whole, wants, turn):
    given_ = fair(whole, wants, turn)
    assert sum(given_.values()) <= whole
    if sum(wants.values()) >= whole:
        assert sum(given_.values()) == whole
        unserved = [given_[name] for name in wants if given_[name] < wants[name]]
        assert all(given_[name] <= min(unserved, default=whole) + 1 for name in wants)
    else:
        assert all(given_[name] >= wants[name] for name in wants)


def test_an_indivisible_rest_rotates():
    assert [fair(1, {"a": 5, "b": 1}, turn)["b"] for turn in range(4)] == [0, 1, 0, 1]


def test_one_router_has_it_all_and_needs_no_exchange_for_that():
    router = settled("a", 7, Store())[0]
    assert router.limit() == 7 and router.admit(9) == 7
    assert router.shares.limit(("other", "concurrent"), 7) == 7


def test_a_leaving_router_frees_its_share_at_once_and_a_dead_one_later():
    store = Store()
    a, b, c = settled("abc", 9, store)
    b.waiting = c.waiting = 1
    store.published["c"] = PeerCapUse(99, left=True)
    for router in (a, b, a, b, a, b):
        router.exchange(store, 1.0)
    assert a.shares.routers == b.shares.routers == 2 and a.limit() + b.limit() >= 8
    a.waiting = 9
    for now in (2.0, 2.0 + GONE_S, 2.1 + GONE_S, 2.2 + GONE_S):
        a.exchange(store, now)
        assert (a.limit() == 9) == (now > 2.15 + GONE_S)
    assert set(store.published) == {"a"}


@pytest.mark.parametrize("wanted", [1, 9])
def test_it_hurries_while_a_router_gets_less_than_it_is_due(wanted):
    a, b = settled("ab", 6, store := Store())
    a.waiting = wanted
    a.exchange(store, 1.0)
    assert a.shares.lacks_share == (wanted > 3)
    b.exchange(store, 1.0)
    assert b.shares.lacks_share == (wanted > 3)
