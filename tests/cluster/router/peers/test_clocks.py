"""The difference of two routers' clocks: what one question tells of it, and how exactly."""

from __future__ import annotations

import math

import pytest

from cluster.router.peers.clocks import DRIFT, ClockDifference


def test_the_difference_lies_within_its_error_however_slow_either_way_is():
    for ahead_s in (-7200.0, 0.0, 3.5):
        for there_s, back_s in ((0.001, 0.001), (0.5, 0.001), (0.0, 0.4)):
            sent_at, worked_s = 1000.0, 0.2
            asked_at = sent_at + there_s + ahead_s
            came_at = sent_at + there_s + worked_s + back_s
            found = ClockDifference.of(sent_at, asked_at, asked_at + worked_s, came_at)
            assert found.error_s == pytest.approx((there_s + back_s) / 2)
            assert abs(found.ahead_s - ahead_s) <= found.error_s + 1e-9


def test_an_older_time_is_less_exact():
    found = ClockDifference(5.0, 0.001)
    assert found.error_at(0) == found.error_at(-3) == 0.001
    assert found.error_at(1000) == pytest.approx(0.001 + 1000 * DRIFT)


@pytest.mark.parametrize(
    ("asked_at", "answered_at"),
    [(0.0, 0.0), (math.nan, 1.0), (1.0, math.inf), (5.0, 4.0), (1.0, 3.0)],
)
def test_times_that_cannot_be_are_no_clock(asked_at, answered_at):
    assert ClockDifference.of(10.0, asked_at, answered_at, 11.0) is None
