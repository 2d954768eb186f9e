"""The sizes of passes: by the time that steps leave, and by the speed of prompts."""

from __future__ import annotations

import pytest

from decode_pool.itl_budget import ItlBudget
from decode_pool.pass_size import PassSize
from engine.scheduling.prompt_order import PromptOrder


def sizes(step_s=0.01, tokens_per_s=50_000.0, mixes=True):
    itl, order = ItlBudget(0.06, None), PromptOrder(512)
    itl.stepped(step_s)
    if tokens_per_s is not None:
        order.learn(1024, 1024 / tokens_per_s)
    return PassSize(itl, order, mixes=mixes)


def test_a_mixed_pass_has_the_prompts_that_fit_into_the_time_that_steps_leave():
    assert sizes().mixed == pytest.approx((0.8 * 0.06 - 0.01) * 50_000, abs=1)


@pytest.mark.parametrize(
    "options", [{"mixes": False}, {"tokens_per_s": None}, {"tokens_per_s": 900.0}, {"step_s": 0.06}]
)
def test_nothing_rides_where_it_is_off_or_the_pass_would_be_short(options):
    assert sizes(**options).mixed == 0


@pytest.mark.parametrize(("used_s", "follows"), [(0.0, True), (0.036, True), (0.037, False)])
def test_a_pass_follows_while_there_is_time_for_a_short_one(used_s, follows):
    """38 ms are left beside a step of 10 ms, and 64 tokens take 1.3 ms."""
    assert sizes().may_follow(used_s) is follows


def test_no_pass_follows_before_the_speed_is_known():
    assert not sizes(tokens_per_s=None).may_follow(0.0)
    assert sizes(tokens_per_s=None).sliced is None
