"""The replicas that stay or wait while one version replaces another: pure, and by property."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.discovery.version_handover import elsewhere, needed, unready
from cluster.replica_record import ReplicaRecord, whole


def record(name: str, role="prefill", weights="w", kv="k", leaving=False) -> ReplicaRecord:
    identity = "" if role == "router" else kv
    return ReplicaRecord(name, role, "a:1", 1, weights, kv_identity=identity, leaving=leaving)


class Roster:
    """A copy of a directory that does not change."""

    def __init__(self, *records):
        self._records = records

    def members(self, role=None):
        return [one for one in self._records if role is None or one.serves(role)]


def names(pools, pool):
    return [one.id for one in pools.healthy(pool)]


OLD = (record("p"), record("d", "decode"), record("r", "router"))
NEW = (record("p2", weights="w2", kv="k2"), record("d2", "decode", "w2", "k2"))


def leaving(*records):
    return tuple(replace(one, leaving=True) for one in records)


def test_a_version_is_whole_with_both_pools_of_one_layout() -> None:
    assert whole(OLD)
    assert whole([record("b", "both")])
    assert not whole(OLD[:1])
    assert not whole([record("p", kv="k"), record("d", "decode", kv="other")])
    assert not whole(leaving(*OLD))


def test_a_leaving_replica_gets_work_only_without_another() -> None:
    staying = Roster(*leaving(*OLD), record("p3"), record("d3", "decode"))
    assert names(HealthyReplicas(staying, identity="w"), "prefill") == ["p3"]
    alone = Roster(*leaving(*OLD), record("p3"))
    assert names(HealthyReplicas(alone, identity="w"), "prefill") == ["p", "p3"]
    assert names(HealthyReplicas(alone, identity="w"), "decode") == ["d"]
    layouts = Roster(*leaving(*OLD[:2]), record("d3", "decode", kv="other"))
    assert names(HealthyReplicas(layouts, identity="w"), "prefill") == ["p"]


def test_an_old_replica_stays_for_its_own_routers() -> None:
    old = leaving(*OLD)
    assert needed("w", (*old, *NEW, record("r2", "router", "w2")))
    assert not needed("w", (*old[:2], *NEW, record("r2", "router", "w2")))
    assert not needed("w", (*old, record("p3"), record("d3", "decode")))


def test_a_new_replica_waits_for_its_version_and_a_router_of_it() -> None:
    own = NEW[0]
    assert unready(own, (*OLD, own))
    assert unready(own, (*OLD, *NEW))
    assert not unready(own, (*OLD, *NEW, record("r2", "router", "w2")))
    # Nobody else serves: at a first start, and where one is started anew.
    assert not unready(own, (own,))
    assert not unready(own, (*leaving(*OLD), own))
    # A router of the same weights gives it work already.
    assert not unready(record("p3", kv="k3"), (*OLD, record("b", "both", kv="k3")))


def test_a_router_may_wait_while_another_serves() -> None:
    assert elsewhere("r2", OLD)
    assert not elsewhere("r", OLD)
    assert not elsewhere("r2", leaving(*OLD))


records = st.builds(
    record,
    st.text("abcdef", min_size=1, max_size=3),
    st.sampled_from(["prefill", "decode", "both", "router"]),
    st.sampled_from(["w", "w2"]),
    st.sampled_from(["k", "k2"]),
    st.booleans(),
)


def test_no_version_waits_for_a_pool_that_sleeps() -> None:
    old, router = record("d", "decode"), record("r", "router")
    # The same weights: the old replica is not needed, and is given nothing more.
    members = (*leaving(old), router, record("d3", "decode"))
    assert not needed("w", members)
    assert names(HealthyReplicas(Roster(*members), identity="w"), "decode") == ["d3"]
    assert needed("w", (*leaving(old), router))
    # Others: the new one serves when its router is there.
    new = record("d2", "decode", "w2", "k2")
    assert unready(new, (old, router, new))
    assert not unready(new, (old, router, new, record("r2", "router", "w2")))


@given(st.lists(records, max_size=8, unique_by=lambda one: one.id))
def test_a_router_never_loses_its_last_replicas_to_a_turnover(members) -> None:
    """If a replica may leave, all pools that it served still have replicas of one KV layout."""
    for weights in ("w", "w2"):
        ours = [one for one in members if one.model_identity == weights]
        if any(one.role == "router" for one in ours) and not needed(weights, members):
            there = [pool for pool in ("prefill", "decode") if any(o.serves(pool) for o in ours)]
            assert any(
                all(any(serves(one, pool, layout) for one in ours) for pool in there)
                for layout in ("k", "k2")
            )


def serves(one, pool, layout):
    return one.serves(pool) and one.kv_identity == layout and not one.leaving


@given(st.lists(records, max_size=8, unique_by=lambda one: one.id))
def test_a_single_version_does_not_wait(members) -> None:
    for own in members:
        if own.role != "router" and all(m.kv_identity in ("", own.kv_identity) for m in members):
            assert not unready(own, members)


@given(st.lists(records, max_size=8, unique_by=lambda one: one.id))
def test_leaving_takes_no_pool_away_that_was_there(members) -> None:
    pools, everyone = HealthyReplicas(Roster(*members), identity="w"), {one.id for one in members}
    for pool in ("prefill", "decode"):
        could = [m.id for m in members if m.serves(pool) and m.model_identity == "w"]
        assert set(names(pools, pool)) <= everyone
        assert bool(names(pools, pool)) == bool(could)
