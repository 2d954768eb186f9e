"""What an offer of KV waited for, as the row of its request tells it."""

from __future__ import annotations

from decode_pool.batching import Formed
from engine.kv.block_pool import BlockPool
from tests.decode_pool.scheduling import local_sequence, scheduler, sequence, start


def waits(subject, *owners):
    return [subject.waited_for(owner) for owner in owners]


def test_an_offer_that_is_taken_at_once_waited_for_nothing():
    subject = scheduler(BlockPool(50))
    start(subject, sequence("a", 5))
    assert waits(subject, "a", "unknown") == ["nothing", "nothing"]


def test_blocks_and_slots_are_told_apart_and_a_later_offer_stands_behind():
    pool = BlockPool(50)
    subject = scheduler(pool, batch=2)
    for owner in ("a", "b", "c", "d"):
        subject.offer(sequence(owner, 5), 0.0)
    subject.grant()
    assert waits(subject, "a", "b", "c", "d") == ["nothing", "nothing", "slots", "earlier"]
    subject.remove("a")
    subject.grant()
    subject.remove("b")
    pool.allocate("another", pool.free)
    subject.grant()
    # The last reason counts: now it is the next, and there are no blocks for it.
    assert waits(subject, "c", "d") == ["slots", "blocks"]
    pool.release("another")
    assert [one.owner for one in subject.grant()] == ["d"]
    assert waits(subject, "d") == ["blocks"]


def test_requests_that_lost_their_blocks_go_first():
    subject = scheduler(BlockPool(50))
    subject.take_over(local_sequence("lost", 5), 0.0)
    subject.offer(sequence("a", 5), 0.0)
    assert subject.grant() == []
    assert waits(subject, "a") == ["earlier"]


def test_an_offer_may_wait_for_the_next_batch():
    subject = scheduler(BlockPool(50), batching=Formed(1.0))
    subject.offer(sequence("a", 5), 0.0)
    assert subject.grant() == []
    assert waits(subject, "a") == ["batch"]
