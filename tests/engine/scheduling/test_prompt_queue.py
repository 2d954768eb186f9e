"""Prompts that wait together, and what one of them means for the others."""

from __future__ import annotations

from itertools import permutations

import pytest

from engine.scheduling.prompt_order import PromptOrder
from engine.scheduling.prompt_queue import PromptQueue
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence
from engine.types.urgency import Urgency


def prompt(owner: str, urgency: Urgency = Urgency.PROMPTS, lane: str = "interactive") -> Sequence:
    return Sequence(owner, [1] * 100, 100, SamplingParams(), urgency=urgency, lane=lane)


@pytest.mark.parametrize("order", list(permutations(("calm", "late", "many"))))
def test_prompts_that_wait_together_share_their_urgency(order):
    turns = PromptQueue(PromptOrder(512))
    prompts = {
        "calm": prompt("calm"),
        "late": prompt("late", Urgency.PRESSED),
        "many": prompt("many", Urgency.URGENT),
        "batch": prompt("batch", lane="batch"),
    }
    for place, name in enumerate(("batch", *order)):
        turns.add(prompts[name], float(place))
    # A prompt behind an urgent one is pressed by it, and makes no wait longer.
    behind = order[order.index("many") + 1 :]
    assert {name: one.urgency for name, one in prompts.items()} == {
        "batch": Urgency.PROMPTS,
        **{name: Urgency.PRESSED if name in behind else Urgency.URGENT for name in order},
    }


def test_a_sequence_with_output_keeps_its_urgency():
    turns, begun = PromptQueue(PromptOrder(512)), prompt("begun")
    begun.tokens.append(1)
    turns.add(begun, 0.0)
    assert begun.urgency is Urgency.PROMPTS


def test_a_prompt_after_a_pressed_one_has_ended_is_not_pressed():
    turns = PromptQueue(PromptOrder(512))
    turns.add(prompt("late", Urgency.PRESSED), 0.0)
    turns.drop("late")
    after = prompt("after")
    turns.add(after, 1.0)
    assert not after.pressed


def test_each_prompt_of_a_pass_is_told_its_part_of_it():
    turns, prompts = PromptQueue(PromptOrder(160)), [prompt(f"{n}") for n in range(2)]
    for one in prompts:
        turns.add(one, 0.0)
    while spans := turns.take(0.0, lambda owner: prompts[int(owner)].remaining):
        turns.begin(spans)
        turns.advanced(spans, 0.01)
        turns.end(spans, computed=True)
        for span in spans:
            span.sequence.computed += span.count
            if not span.sequence.remaining:
                turns.drop(span.sequence.owner)
    assert [one.passes for one in prompts] == pytest.approx([100 / 160, 60 / 160 + 1])


def test_a_pass_that_computed_nothing_counts_for_its_prompts_and_teaches_nothing():
    turns, prompts = PromptQueue(PromptOrder(160)), [prompt(f"{n}") for n in range(2)]
    for one in prompts:
        turns.add(one, 0.0)
    spans = turns.take(0.0, lambda owner: prompts[int(owner)].remaining)
    turns.begin(spans)
    turns.advanced(spans, 0.16)
    turns.end(spans, computed=False)
    assert [one.pass_s for one in prompts] == pytest.approx([0.1, 0.06])
    assert [one.passes for one in prompts] == [0.0, 0.0]
    assert turns.order.cost.seconds(160) is None
