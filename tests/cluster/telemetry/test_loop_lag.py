"""A router whose event loop stood still is unhealthy for a while."""

from __future__ import annotations

from cluster.telemetry.loop_lag import HOLD_S, LATE_S, LoopLag


def test_a_loop_that_is_only_busy_is_not_late():
    lag = LoopLag()
    lag.note(LATE_S, now=100.0)
    assert not lag.late(100.0)


def test_a_loop_that_stood_still_is_late_for_a_while():
    lag = LoopLag()
    lag.note(LATE_S + 0.1, now=100.0)
    assert lag.late(100.0)
    assert lag.late(100.0 + HOLD_S - 0.1)
    assert not lag.late(100.0 + HOLD_S)
