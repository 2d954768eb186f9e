"""Prompts that wait together, and what one of them means for the others."""

from __future__ import annotations

import pytest

from engine.prompt_order import PromptOrder
from engine.prompt_turns import PromptTurns
from engine.sampling import SamplingParams
from engine.sequence import Sequence


def prompt(owner: str, *, pressed: bool = False, lane: str = "interactive") -> Sequence:
    return Sequence(owner, [1] * 100, 100, SamplingParams(), pressed=pressed, lane=lane)


@pytest.mark.parametrize("order", [("calm", "late"), ("late", "calm")])
def test_who_waits_with_a_pressed_prompt_is_pressed(order):
    turns = PromptTurns(PromptOrder(512))
    prompts = {
        "calm": prompt("calm"),
        "late": prompt("late", pressed=True),
        "batch": prompt("batch", lane="batch"),
    }
    for place, name in enumerate(("batch", *order)):
        turns.add(prompts[name], float(place))
    assert {name: one.pressed for name, one in prompts.items()} == {
        "calm": True,
        "late": True,
        "batch": False,
    }


def test_who_comes_after_a_pressed_prompt_has_ended_is_not():
    turns = PromptTurns(PromptOrder(512))
    turns.add(prompt("late", pressed=True), 0.0)
    turns.drop("late")
    after = prompt("after")
    turns.add(after, 1.0)
    assert not after.pressed
