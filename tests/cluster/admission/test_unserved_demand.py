"""Requests that pools have no capacity for, as routers count them."""

from cluster.admission.unserved_demand import LATELY_S, UnservedDemand


def test_a_refusal_counts_for_the_pool_without_capacity_and_for_a_moment():
    unserved = UnservedDemand()
    for reason in ("ttft", "ttft", "kv_blocks", "itl", "tenant_concurrent", "queue_full"):
        unserved.refused(reason, 10.0)
    assert unserved.count((), 10.5) == {"prefill": 2, "decode": 2}
    assert not unserved.count((), 10.1 + LATELY_S)


def test_a_request_that_waits_for_decode_counts_after_a_moment():
    """A wait for computing counts by its seconds elsewhere."""
    waiting = [(10.0, "itl"), (10.9, "kv_blocks"), (9.0, "tenant_concurrent"), (9.0, None)]
    waiting.append((0.0, "ttft"))
    unserved = UnservedDemand()
    assert not unserved.count(waiting, 10.5)
    assert unserved.count(waiting, 11.5) == {"decode": 1}
    assert unserved.count(waiting, 12.0) == {"decode": 2}
