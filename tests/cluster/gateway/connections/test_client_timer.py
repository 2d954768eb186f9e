"""A client's deadline: it ends once, can be stopped, and can run again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cluster.gateway.connections.client_timer import ClientTimer

SECONDS = 8.0


class Clock:
    """The timers of an event loop, by a time that a test moves on."""

    def __init__(self):
        self.now, self.timers = 0.0, []

    def call_later(self, seconds, call):
        timer = SimpleNamespace(at_s=self.now + seconds, call=call)
        timer.cancel = lambda: self.timers.remove(timer)
        self.timers.append(timer)
        return timer

    def move(self, seconds):
        self.now += seconds
        for due in [timer for timer in self.timers if timer.at_s <= self.now]:
            self.timers.remove(due)
            due.call()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ended():
    """When the timer called."""
    return []


@pytest.fixture
def timer(clock, ended):
    return ClientTimer(clock, SECONDS, lambda: ended.append(clock.now))


def test_a_timer_that_runs_is_not_begun_anew(clock, timer, ended):
    timer.start()
    clock.move(SECONDS / 2)
    timer.start()
    clock.move(SECONDS / 2)
    assert ended == [SECONDS]
    clock.move(2 * SECONDS)
    assert len(ended) == 1


def test_a_stopped_timer_calls_nothing(clock, timer, ended):
    timer.start()
    for _ in range(2):
        timer.stop()
    clock.move(2 * SECONDS)
    assert not ended


@pytest.mark.parametrize("stopped", [False, True])
def test_a_timer_runs_again_after_its_end_or_a_stop(clock, timer, ended, stopped):
    timer.start()
    if stopped:
        timer.stop()
    else:
        clock.move(SECONDS)
        ended.clear()
    timer.start()
    clock.move(SECONDS)
    assert ended == [clock.now]
