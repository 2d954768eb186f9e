"""What routers say that the pools have no room for."""

from cluster.admission.unserved_demand import LATELY_S, UnservedDemand


def test_a_refusal_counts_for_the_pool_that_had_no_room_and_for_a_moment():
    unmet = UnservedDemand()
    for reason in ("ttft", "ttft", "kv_blocks", "itl", "tenant_concurrent", "queue_full"):
        unmet.refused(reason, 10.0)
    assert unmet.count((), 10.5) == {"prefill": 2, "decode": 2}
    assert not unmet.count((), 10.1 + LATELY_S)


def test_who_is_held_for_want_of_decode_counts_after_a_moment():
    """A wait for one's turn is no lack; it counts by its length."""
    held = [(10.0, "itl"), (10.9, "kv_blocks"), (9.0, "tenant_concurrent"), (9.0, None)]
    held.append((0.0, "ttft"))
    unmet = UnservedDemand()
    assert not unmet.count(held, 10.5)
    assert unmet.count(held, 11.5) == {"decode": 1}
    assert unmet.count(held, 12.0) == {"decode": 2}
