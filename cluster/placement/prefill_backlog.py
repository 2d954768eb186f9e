"""What the prompts that wait on a replica take of it still. Pure."""

from __future__ import annotations

from cluster.placement.cost_model import PrefillCost
from cluster.placement.edf_forecast import EdfPrompt
from cluster.placement.replica_load import PrefillBacklog
from engine.types.urgency import Urgency, raised


def backlog(
    queue: PrefillBacklog,
    cost: PrefillCost,
    now: float,
    batch: bool = False,
    behind: Urgency = Urgency.NONE,
) -> list[EdfPrompt]:
    """The prompts from here that wait there, those of the batch lane only where `batch` asks.

    `behind` is the urgency of a prompt that comes behind them, which raises theirs. The oldest is
    taken to be computed since it was placed, the one before it ended, or the replica last said that
    it had computed some: prompts are given to replicas one or two at a time, and replicas say what
    is done pass by pass.
    """
    found: list[EdfPrompt] = []
    for one in queue.left():
        prompt = one.prompt
        if batch or not prompt.batch:
            urgency = one.urgency if prompt.batch else raised(one.urgency, behind)
            before = prompt.cached + prompt.tokens - one.tokens
            seconds = cost.seconds(one.tokens, before, urgency)
            begun_s = max(cost.ended_s, queue.progressed_s, one.placed_s)
            done_s = 0.0 if found else min(max(0.0, now - begun_s), seconds)
            found.append(EdfPrompt(seconds - done_s, prompt.deadline_s))
    return found
