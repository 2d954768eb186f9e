"""Placement where the replica that computes a prompt must have capacity for its answer, too."""

import random

import pytest

from cluster.placement.types import PlacementRequest
from tests.cluster.placement.test_placement import Placement, replica


def test_one_pool_computes_prompts_of_any_length_where_they_are_decoded():
    pool = [replica("b0", "both"), replica("b1", "both")]
    placement = Placement()
    first = placement.choose(pool, pool, 900, 1000)
    placement.add_prompt(first.prefill, 900)
    second = placement.choose(pool, pool, 900, 1000)
    assert first.local
    assert second.local
    assert {first.decode.id, second.decode.id} == {"b0", "b1"}


def test_a_prompt_goes_where_its_answer_has_a_slot_though_it_is_slower_there():
    pool = [replica("b0", "both", running=8, batch_limit=8), replica("b1", "both", batch_limit=8)]
    placement = Placement()
    for record, prefill_s in zip(pool, (0.3, 0.4), strict=True):
        for second in range(-20, 0):
            placement.costs.prefill(record.id).learn(300, 0, prefill_s, float(second))
    found = placement.plan(pool, pool, PlacementRequest(100, 120, budget_s=2.0), 0.0)
    assert (found.pair.decode.id, found.forecast.slots_shortfall) == ("b1", 0)


@pytest.mark.parametrize("load", [{"running": 2, "batch_limit": 2}, {"blocks_promised": 95}])
def test_what_decode_has_cached_is_not_computed_where_its_answer_has_no_capacity(load):
    prefill = [replica("p0", "prefill")]
    decode = [replica("d0", "decode", **load), replica("d1", "decode", batch_limit=8)]
    placement = Placement(local_prefill_tokens=256)
    digests = [b"a%d" % n for n in range(6)]
    placement.learn(decode[0], digests)
    found = placement.plan(prefill, decode, PlacementRequest(100, 120, digests, budget_s=2.0), 0.0)
    assert (found.pair.prefill.id, found.pair.decode.id) == ("p0", "d1")
    assert not (found.forecast.slots_shortfall or found.forecast.blocks_shortfall)


def test_a_replica_of_role_both_must_have_capacity_for_the_answer():
    prefill, both = replica("p0", "prefill"), replica("b0", "both", blocks=10)
    decode = replica("d0", "decode")
    placement = Placement()
    placement.add_prompt(prefill, 500)
    assert placement.choose([prefill, both], [decode, both], 100, 160).local
    pair = placement.choose([prefill, both], [decode, both], 100, 161)
    assert (pair.prefill.id, pair.decode.id) == ("p0", "d0")


def test_a_replica_with_slots_and_too_long_a_queue_is_no_better_than_a_full_one():
    """A slot is free when a request has ended, sooner than the other is done."""
    pool = [replica("b0", "both", running=8, batch_limit=8), replica("b1", "both", batch_limit=8)]
    placement = Placement()
    for record in pool:
        for second in range(-20, 0):
            placement.costs.prefill(record.id).learn(300, 0, 0.3, float(second))
    for _ in range(9):
        placement.add_prompt(pool[1], 900)
    found = placement.plan(pool, pool, PlacementRequest(100, 120, budget_s=1.0), 0.0)
    assert (found.pair.decode.id, found.forecast.feasible) == ("b0", True)
    assert found.forecast.slots_shortfall


def test_choices_may_go_where_there_is_capacity():
    """Beside prefill to all that decode, though the first is computed where it is decoded."""
    prefill = [replica("p0", "prefill"), replica("p1", "both", running=6, batch_limit=8)]
    decode = [prefill[1], replica("d0", "decode", running=1, batch_limit=11)]
    placement = Placement()
    placement.add_prompt(prefill[0], 900)
    found = placement.plan(prefill, decode, PlacementRequest(10, 20, choices=4), 0.0)
    assert (found.pair.prefill.id, found.forecast.slots_shortfall) == ("p1", 0)
    assert (
        placement.plan(
            prefill, decode, PlacementRequest(10, 20, choices=13), 0.0
        ).forecast.slots_shortfall
        == 1
    )


def test_of_replicas_whose_state_is_old_the_drawn_one_must_have_capacity_itself():
    prefill = [replica("p0", "prefill")]
    full = [replica(f"d{n}", "decode", running=2, batch_limit=2) for n in range(3)]
    decode = [*full, replica("d3", "decode", batch_limit=2)]
    placement = Placement(chance=random.Random(1))
    stale = {record.id for record in decode}
    for _ in range(20):
        found = placement.plan(prefill, decode, PlacementRequest(10, 20), 0.0, stale=stale)
        assert (found.pair.decode.id == "d3") != (found.forecast.slots_shortfall > 0)
