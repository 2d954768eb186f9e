"""Placement: pure, so by example and by property."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.placement import placement as placement_module
from cluster.placement.types import Forecast, Pair, PlacementPlan, PlacementRequest
from cluster.replica_record import ReplicaLoad, ReplicaRecord
from engine.errors import PromptTooLong, Unavailable


def replica(name: str, role: str, blocks: int = 100, **load: int) -> ReplicaRecord:
    return ReplicaRecord(
        id=name,
        role=role,
        address="127.0.0.1:1",
        generation=1,
        load=ReplicaLoad(blocks_total=blocks, block_size=16, **load),
    )


class Placement(placement_module.Placement):
    """Short forms, for requests without budgets."""

    def choose(self, prefill, decode, prompt_tokens, most_tokens, digests=()):
        return self.plan(
            prefill, decode, PlacementRequest(prompt_tokens, most_tokens, digests), 0.0
        ).pair

    def add_prompt(self, record, tokens):
        request = PlacementRequest(tokens, tokens + 1, budget_s=1.0)
        pair = Pair(record, record)
        return self.add_load(PlacementPlan(pair, Forecast(0.0, 1.0)), request, 0.0)


def test_least_loaded_wins_and_ties_rotate():
    pool = [replica("p0", "prefill"), replica("p1", "prefill")]
    decode = [replica("d0", "decode", running=5), replica("d1", "decode")]
    placement = Placement()
    first = placement.choose(pool, decode, 10, 20)
    shares = placement.add_prompt(first.prefill, 10)
    second = placement.choose(pool, decode, 10, 20)
    assert {first.prefill.id, second.prefill.id} == {"p0", "p1"}
    assert first.decode.id == "d1"
    for share in (*shares, *shares):
        share.release()
    assert placement.choose(pool, decode, 10, 20).prefill.id == second.prefill.id


def test_prefill_counts_tokens_and_not_requests():
    pool = [replica("p0", "prefill"), replica("p1", "prefill")]
    decode = [replica("d0", "decode")]
    placement = Placement()
    placement.add_prompt(pool[0], 1000)
    for _ in range(3):
        placement.add_prompt(pool[1], 10)
    assert placement.choose(pool, decode, 500, 520).prefill.id == "p1"


def test_small_pools_are_passed_over_and_both_numbers_are_named():
    small, large = replica("d0", "decode", blocks=2), replica("d1", "decode", blocks=50)
    prefill = [replica("p0", "prefill")]
    assert Placement().choose(prefill, [small, large], 10, 40).decode.id == "d1"
    with pytest.raises(PromptTooLong, match=r"40 tokens do not fit the decode pool.*32"):
        Placement().choose(prefill, [small], 10, 40)


@pytest.mark.parametrize("missing", ["prefill", "decode"])
def test_an_empty_pool_is_unavailable_and_says_when_to_retry(missing):
    pools = {"prefill": [replica("p", "prefill")], "decode": [replica("d", "decode")], missing: []}
    with pytest.raises(Unavailable, match=missing) as refusal:
        Placement().choose(pools["prefill"], pools["decode"], 1, 1)
    assert refusal.value.retry_after_s


def test_prefill_goes_where_the_least_is_left_to_compute():
    pool = [replica("p0", "prefill"), replica("p1", "prefill")]
    decode = [replica("d0", "decode")]
    placement = Placement()
    digests = [bytes([number]) for number in range(6)]
    placement.learn(pool[1], digests[:4])
    for _ in range(3):
        pair = placement.choose(pool, decode, 100, 120, digests)
        assert (pair.prefill.id, pair.cached_tokens) == ("p1", 64)
    for _ in range(2):
        placement.add_prompt(pool[1], 65)
    pair = placement.choose(pool, decode, 100, 120, digests)
    assert (pair.prefill.id, pair.cached_tokens) == ("p0", 0)


def test_the_last_token_of_a_prompt_is_never_expected_in_a_cache():
    pool, decode = [replica("p0", "prefill")], [replica("d0", "decode")]
    placement = Placement()
    placement.learn(pool[0], [b"0", b"1"])
    assert placement.choose(pool, decode, 32, 40, [b"0", b"1"]).cached_tokens == 16
    assert placement.choose(pool, decode, 33, 40, [b"0", b"1"]).cached_tokens == 32


def test_known_prefixes_are_bounded_and_end_with_the_replica():
    pool = [replica("p0", "prefill", blocks=10)]
    decode = [replica("d0", "decode")]
    placement = Placement()

    def known(digests):
        return placement.choose(pool, decode, 100, 120, digests).cached_tokens // 16

    old, new = [b"a%d" % n for n in range(6)], [b"b%d" % n for n in range(6)]
    placement.learn(pool[0], old)
    placement.learn(pool[0], new)
    assert (known(old), known(new)) == (4, 6)
    placement.forget(["d0"])
    assert known(new) == 0


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 4), st.integers(1, 4))
def test_requests_spread_evenly(comes, prefills, decodes):
    placement = Placement()
    prefill = [replica(f"p{i}", "prefill") for i in range(prefills)]
    decode = [replica(f"d{i}", "decode") for i in range(decodes)]
    placed = []
    for one in comes:
        if one or not placed:
            pair = placement.choose(prefill, decode, 10, 20)
            for record in (pair.prefill, pair.decode):
                placement.add_prompt(record, 10)
            placed.append(pair)
    counts = [sum(pair.decode.id == record.id for pair in placed) for record in decode]
    assert max(counts) - min(counts) <= 1


def of(version, name, role):
    return replace(replica(name, role), kv_identity=version)


VERSIONS = st.lists(st.sampled_from("abc"), min_size=1, max_size=6)


@settings(deadline=None)
@given(VERSIONS, VERSIONS, st.integers(0, 10**6))
def test_kv_never_goes_from_one_version_to_another(first, second, tokens):
    prefill = [of(version, f"p{place}", "prefill") for place, version in enumerate(first)]
    decode = [of(version, f"d{place}", "decode") for place, version in enumerate(second)]
    placement = Placement(local_prefill_tokens=20)
    for _ in range(8):
        if not set(first) & set(second):
            with pytest.raises(Unavailable, match="same weights"):
                placement.choose(prefill, decode, 1 + tokens % 100, 120)
            break
        pair = placement.choose(prefill, decode, 1 + tokens % 100, 120)
        assert pair.prefill.kv_identity == pair.decode.kv_identity
        placement.add_prompt(pair.prefill, 100)
