"""Figures of hand-overs that are kept."""

from __future__ import annotations

import pytest

from bench.core.statistics import Spread
from bench.report.goals import GOALS
from bench.transfer.floor import Parts
from bench.transfer.hand_over import EARLY_PROMPTS, FLIGHTS, PROMPTS, HandOverLoad
from bench.transfer.report import ChannelFigures, as_markdown, as_series
from bench.transfer.shape import BORROWED

MACHINE = {"commit": "c", "date": "2026-01-02"}
PARTS = (Parts(0.002, 0.001, 0.002, 10_000_000),)
WAYS = (BORROWED, "shared_memory", "gloo")
CASES = [
    *((tokens, 1, False) for tokens in PROMPTS),
    *((1024, requests, False) for requests in FLIGHTS),
    *((tokens, 1, True) for tokens in EARLY_PROMPTS),
]
HAND_OVERS = [
    HandOverLoad(way, *case, Spread((0.01, 0.02, 0.015)), PARTS, Spread((2e9,)))
    for way in WAYS
    for case in CASES
]
CHANNELS = [ChannelFigures(way, Spread((9e9,)), Spread((10e9,)), "memcpy") for way in WAYS[1:]]


def test_a_run_gives_every_figure_that_a_goal_needs():
    series = as_series(CHANNELS, HAND_OVERS, MACHINE)
    needed = {one.figure for goal in GOALS for one in goal.sources if one.benchmark == "transfer"}
    assert needed <= series.figures.keys()
    assert series.figures["gloo: channel over plain copy"].value == pytest.approx(0.9)
    took = series.figures["gloo, 1 x 1,024 tokens: hand-over"]
    assert (took.value, took.low, took.high, took.unit) == (15.0, 10.0, 20.0, "ms")
    # 5 ms for its parts and 5 for the link.
    assert series.figures["gloo, 1 x 1,024 tokens: of the floor"].value == pytest.approx(1.5)


def test_complete_and_early_hand_overs_have_separate_tables():
    text = as_markdown(CHANNELS, HAND_OVERS, "a machine")
    assert "| gloo, 32 x 1,024 tokens | 10.0 | 15.0 [10.0 to 20.0] | 0.67 | 10.0 | 1.50 |" in text
    assert "| gloo, 2,048 tokens while computed | 10.0 | 15.0 [10.0 to 20.0] |" in text
    assert "| gloo | 9.00 | 10.00 memcpy | 90% |" in text
