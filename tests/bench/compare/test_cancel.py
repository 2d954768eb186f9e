"""What is said of a histogram of cancels."""

from __future__ import annotations

import math

import pytest

from bench.compare.cancel import cancels_in_words


@pytest.mark.parametrize(
    ("fast", "within", "p99_ms"), [(98, 100, 250), (99, 99, 100), (10, 50, 500)]
)
def test_the_share_within_the_goal_and_the_bound_of_p99(
    fast: int, within: int, p99_ms: int
) -> None:
    told = cancels_in_words({0.1: fast, 0.25: within, 0.5: 100, math.inf: 100})
    assert told == f"time to cancel: {within} of 100 within 250 ms, p99 at most {p99_ms} ms"


def test_without_cancels_nothing_is_claimed() -> None:
    assert cancels_in_words({0.25: 0, math.inf: 0}) == "no cancel was counted"
