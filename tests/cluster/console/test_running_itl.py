"""The ITL of requests that run, and the values that stand for many of them."""

from __future__ import annotations

from array import array

import pytest

from cluster.console.running_itl import RunningItl, evenly


def test_each_time_between_tokens_is_read_once():
    itl, came_s = RunningItl(), array("d")
    assert itl.read([came_s], 10.0) == (10.0, 0.0)
    came_s.append(10.1)
    assert itl.read([came_s], 10.5) == (10.5, 0.0)
    came_s.extend([10.6, 10.7])
    assert itl.read([came_s], 11.0) == (11.0, pytest.approx(0.5))
    assert itl.read([came_s], 11.1) == (11.1, 0.0)
    came_s.append(11.2)
    assert itl.read([came_s], 11.5) == (11.5, pytest.approx(0.5))


def test_a_stall_grows_until_the_next_token():
    itl, came_s = RunningItl(), array("d", [10.0, 10.1])
    itl.read([came_s], 10.2)
    for now, stall_s in ((11.0, 0.0), (11.2, 1.1), (13.1, 3.0)):
        assert itl.read([came_s], now) == (now, pytest.approx(stall_s))
        assert itl.stall_s == pytest.approx(stall_s)
    came_s.append(13.6)
    assert itl.read([came_s], 13.7) == (13.7, pytest.approx(3.5))
    assert (itl.stall_s, itl.longest_s) == (0.0, pytest.approx(3.5))


def test_a_choice_that_ended_stalls_no_more():
    itl = RunningItl()
    first, second = array("d", [10.0, 10.1]), array("d", [10.0, 10.1, 19.9, 20.0])
    assert itl.read([first, second], 20.0)[1] == pytest.approx(9.9)
    assert itl.read([(), second], 20.1) == (20.1, 0.0)
    assert itl.stall_s == 0.0


def test_what_was_long_ago_keeps_its_time():
    assert RunningItl().read([array("d", [10.0, 15.0, 15.1])], 15.2) == (15.0, 5.0)


def test_a_few_values_stand_for_many():
    ranked = [float(number) for number in range(1000)]
    few = evenly(ranked, 25)
    assert len(few) == 25
    assert (few[12], few[23]) == (500.0, 940.0)
    assert evenly(ranked[:25], 25) == ranked[:25]
