"""Requests of two runs, each compared with itself."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from bench.compare.burst_figures import as_series
from bench.compare.burst_measurement import Measured
from bench.compare.burst_report import as_markdown
from bench.compare.paired_requests import one_by_one
from bench.systems.contenders import POOLS, SINGLE


def _run(system, number, itls, within_goals):
    counts = {"all": {"within_goals": sum(within_goals)}}
    return Measured(
        system,
        number,
        "a trace",
        1,
        counts,
        about="a",
        each_itl=itls,
        each_within_goals=within_goals,
    )


OURS = _run(POOLS, 1, [0.010, 0.014, None, 0.020, None], [True, True, False, True, True])
THEIRS = _run(SINGLE, 1, [0.012, 0.011, 0.005, 0.025, None], [True, True, True, False, True])


def test_each_request_is_compared_with_itself():
    found = one_by_one([OURS], [THEIRS])
    # By the median request they are ahead, of the same requests we are in two of three.
    ours, theirs = (median(filter(None, one.each_itl)) for one in (OURS, THEIRS))
    assert ours > theirs
    assert found.difference_s.median == pytest.approx(-0.002)
    assert found.smaller.median == pytest.approx(2 / 3)
    assert (found.ours_alone.median, found.theirs_alone.median) == (1, 1)


def test_the_report_says_so():
    text = as_markdown([OURS, THEIRS], {})
    assert "| ITL with two pools less that with one, ms, median | -2.0 |" in text
    assert "| share of requests whose ITL is smaller with two pools | 0.67 |" in text
    figures = as_series([OURS, THEIRS], "a trace").figures
    less = figures["pools less single: ITL of a request, p50"]
    assert (less.value, less.n) == (pytest.approx(-2.0), 1)
    assert figures["pools less single: share of smaller ITL"].value == pytest.approx(2 / 3, 1e-5)


@pytest.mark.parametrize(
    "other",
    [
        replace(THEIRS, round=2),
        replace(THEIRS, seed=2),
        replace(THEIRS, about="the same, slower"),
        replace(THEIRS, each_itl=[], each_within_goals=[]),
        replace(THEIRS, each_itl=[None] * 5),
    ],
)
def test_what_is_not_the_same_or_has_no_itl_is_not_paired(other):
    assert one_by_one([OURS], [other]) is None
    assert "against itself" not in as_markdown([OURS, other], {})
    figures = as_series([OURS, other], "a trace").figures
    assert not any(name.startswith("pools less single") for name in figures)


def test_loads_of_another_length_are_an_error():
    with pytest.raises(ValueError, match="zip"):
        one_by_one([OURS], [replace(THEIRS, each_itl=[0.01], each_within_goals=[True])])
