"""What waits on a replica, as time passes and as others come."""

from __future__ import annotations

import random

import pytest

from cluster.placement.cost_model import PrefillCost
from cluster.placement.prefill_backlog import PlacedPrompt, PrefillBacklog, edf_prompts
from engine.types.urgency import Urgency

TOKEN_S = dict(zip(Urgency, (0.001, 0.002, 0.0015, 0.00125), strict=True))


@pytest.fixture
def cost() -> PrefillCost:
    """Of a replica that has computed prompts until it was 0."""
    learned, chance = PrefillCost(), random.Random(0)
    for place in range(240):
        urgency, tokens = Urgency(place % 4), chance.randrange(64, 1024)
        now = 5.0 * (place - 239)
        learned.learn(tokens, 0, tokens * TOKEN_S[urgency], now, urgency=urgency)
    return learned


def seconds(queue: PrefillBacklog, cost: PrefillCost, now: float, **more) -> list[float]:
    return [due.length for due in edf_prompts(queue, cost, now, **more)]


def test_the_oldest_is_computed_as_time_passes(cost):
    queue = PrefillBacklog()
    queue.add(PlacedPrompt(800), 10.0)
    second = queue.add(PlacedPrompt(400), 10.1)
    assert seconds(queue, cost, 10.1) == pytest.approx([0.7, 0.4], abs=0.02)
    assert seconds(queue, cost, 15.0) == pytest.approx([0.0, 0.4], abs=0.02)
    queue.report(1200, 10.2)
    queue.report(700, 10.5)  # a pass of 500 tokens has ended
    assert seconds(queue, cost, 10.6) == pytest.approx([0.2, 0.4], abs=0.02)
    queue.drop(second)
    queue.report(300, 10.7)
    assert seconds(queue, cost, 10.8) == pytest.approx([0.2], abs=0.02)


def test_it_is_not_computed_while_another_was(cost):
    queue = PrefillBacklog()
    queue.add(PlacedPrompt(800), 10.0)
    cost.learn(500, 0, 0.5, 10.4)
    assert seconds(queue, cost, 10.5) == pytest.approx([0.7], abs=0.02)


def test_it_is_not_computed_before_it_came(cost):
    queue = PrefillBacklog()
    queue.add(PlacedPrompt(1000, batch=True), 10.0)
    queue.report(600, 10.5, 600)
    queue.add(PlacedPrompt(300), 10.9)
    assert seconds(queue, cost, 11.0) == pytest.approx([0.2], abs=0.02)


def test_prompts_that_wait_together_share_their_urgency(cost):
    queue = PrefillBacklog()
    for urgency in (Urgency.NONE, Urgency.PROMPTS):
        queue.add(PlacedPrompt(400, urgency=urgency), 10.0)
    assert seconds(queue, cost, 10.0) == pytest.approx([0.4, 0.8], abs=0.03)
    found = seconds(queue, cost, 10.0, newcomer=Urgency.PRESSED)
    assert found == pytest.approx([0.4, 0.6], abs=0.03)
    urgent = queue.add(PlacedPrompt(100, urgency=Urgency.URGENT), 10.0)
    assert seconds(queue, cost, 10.0) == pytest.approx([0.4, 0.5, 0.125], abs=0.03)
    # Who comes behind an urgent one is pressed, and stays so when that has gone.
    queue.add(PlacedPrompt(200, urgency=Urgency.PROMPTS), 10.0)
    queue.drop(urgent)
    assert seconds(queue, cost, 10.0) == pytest.approx([0.4, 0.5, 0.3], abs=0.03)


def test_batch_prompts_delay_only_batch_prompts(cost):
    queue = PrefillBacklog()
    queue.add(PlacedPrompt(400, batch=True, urgency=Urgency.PROMPTS), 10.0)
    queue.add(PlacedPrompt(100), 10.0)
    assert seconds(queue, cost, 10.0) == pytest.approx([0.1], abs=0.02)
    queue.drop(queue.add(PlacedPrompt(100, urgency=Urgency.URGENT), 10.0))
    for urgency in Urgency:
        found = seconds(queue, cost, 10.0, batch=True, newcomer=urgency)
        assert found == pytest.approx([0.1, 0.8], abs=0.03)
