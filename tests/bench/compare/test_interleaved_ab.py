"""Two modes by turns on the windows of one load."""

from __future__ import annotations

from bench.compare.interleaved_ab import Found, as_markdown, as_report, between, cut, turns
from bench.load.arrivals import Arrival, Load
from bench.systems.contenders import POOLS, SINGLE

LOAD = Load(
    "a load",
    1,
    tuple(Arrival(at_s, "trace", 10, 4) for at_s in (0.0, 1.0, 29.9, 30.0, 95.0)),
    (("trace", 0.0, 100.0),),
)


def test_windows_have_every_request_once_and_begin_with_their_own_time():
    windows = cut(LOAD, 30.0)
    assert [window.indices for window in windows] == [(0, 1, 2), (3,), (4,)]
    begins = [window.load.arrivals[0].at_s for window in windows]
    assert [round(at_s, 6) for at_s in begins] == [0.3, 0.3, 5.3]


def test_both_play_each_window_and_begin_by_turns():
    order = [(number, window.indices[0], name) for number, window, name in turns(2, cut(LOAD, 30))]
    assert order[:4] == [(1, 0, POOLS), (1, 0, SINGLE), (1, 3, SINGLE), (1, 3, POOLS)]
    assert len(order) == len(set(order)) == 2 * 2 * 3


def found(system, index, good, itl_s):
    return Found(1, system, index, good, False, 0.1, itl_s)


def test_a_request_is_held_against_itself():
    rows = [
        *(found(POOLS, index, True, 0.010) for index in range(3)),
        *(found(SINGLE, index, index > 0, 0.012) for index in range(3)),
        found(POOLS, 3, False, None),
        found(SINGLE, 3, True, 0.020),
    ]
    text = as_markdown(rows)
    assert "| gap with two pools less that with one, ms | -2.0 [-2.0 to -2.0] |" in text
    assert "| smaller with two pools | 3 of 3 |" in text
    assert "| good with two pools alone | 1 |" in text
    assert "| good with one pool alone | 1 |" in text


def test_where_no_request_ended_in_both_modes_no_change_is_told():
    text = as_markdown([found(POOLS, 0, False, None), found(SINGLE, 0, True, 0.012)])
    assert "| gap with two pools less that with one, ms |  |" in text
    assert "| good with one pool alone | 1 |" in text


def test_a_report_says_how_much_of_all_was_played():
    rows = [found(POOLS, 0, True, 0.010), found(SINGLE, 0, True, 0.012)]
    text = as_report(LOAD, rows, "1 of 6 windows of 30 s")
    assert text.startswith("**a load**, seed 1; 1 of 6 windows of 30 s, all rounds together; ")
    assert as_markdown(rows) in text


def test_medians_of_values_drawn_anew_lie_about_theirs():
    low, high = between([float(value) for value in range(101)])
    assert 30 < low < 50 < high < 70
