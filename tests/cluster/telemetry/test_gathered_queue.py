"""The queue from the event loop to one thread."""

from __future__ import annotations

import threading
import time

from cluster.telemetry.gathered_queue import GatheredQueue


def test_items_wait_for_others_and_come_together():
    queue: GatheredQueue[int] = GatheredQueue(10, 60.0)
    assert queue.put(1)

    def more() -> None:
        assert queue.put(2)
        queue.end()

    threading.Timer(0.05, more).start()
    assert queue.take() == ([1, 2], True)


def test_nothing_comes_when_the_time_is_over():
    queue: GatheredQueue[int] = GatheredQueue(10, 5.0)
    began_s = time.monotonic()
    assert queue.take(0.01) == ([], False)
    assert time.monotonic() - began_s < 2


def test_a_full_queue_takes_nothing_more():
    queue: GatheredQueue[int] = GatheredQueue(2, 0.0)
    assert [queue.put(number) for number in range(3)] == [True, True, False]
    assert queue.take() == ([0, 1], False)
    assert queue.put(3)


def test_at_the_end_what_waits_comes_at_once_as_the_last():
    queue: GatheredQueue[int] = GatheredQueue(10, 60.0)
    queue.put(1)
    threading.Timer(0.05, queue.end).start()
    assert queue.take() == ([1], True)


def test_an_end_that_comes_while_items_are_taken_is_not_missed(monkeypatch):
    class EndedWhileCleared(threading.Event):
        def clear(self):
            queue.end()
            super().clear()

    monkeypatch.setattr(threading, "Event", EndedWhileCleared)
    queue: GatheredQueue[int] = GatheredQueue(10, 0.0)
    queue.put(1)
    assert queue.take() == ([1], True)


def test_no_item_is_lost_between_two_threads():
    queue: GatheredQueue[int] = GatheredQueue(100_000, 0.0)

    def put():
        for number in range(20_000):
            assert queue.put(number)
        queue.end()

    thread = threading.Thread(target=put)
    thread.start()
    found, last = [], False
    while not last:
        some, last = queue.take(5.0)
        found += some
    thread.join()
    assert found == list(range(20_000))
