"""What the prompts that wait on a replica take of it still. Pure."""

from __future__ import annotations

from cluster.placement.cost_model import Pace, PrefillCost, hurried
from cluster.placement.edf_forecast import EdfPrompt
from cluster.placement.replica_load import PrefillBacklog


def backlog(
    queue: PrefillBacklog,
    cost: PrefillCost,
    now: float,
    batch: bool = False,
    behind: Pace = Pace.ALONE,
) -> list[EdfPrompt]:
    """The prompts from here that wait there, those of the batch lane only where `batch` asks.

    `behind` is the pace of one that comes behind them, which they take part in. The oldest is taken
    to be computed since it was placed, the one before it ended, or the replica last said that it
    had computed some: prompts are given to replicas one or two at a time, and replicas say what is
    done pass by pass.
    """
    found: list[EdfPrompt] = []
    for one in queue.left():
        prompt = one.prompt
        if batch or not prompt.batch:
            pace = one.pace if prompt.batch else hurried(one.pace, behind)
            before = prompt.cached + prompt.tokens - one.tokens
            seconds = cost.seconds(one.tokens, before, pace)
            begun_s = max(cost.ended_s, queue.progressed_s, one.placed_s)
            done_s = 0.0 if found else min(max(0.0, now - begun_s), seconds)
            found.append(EdfPrompt(seconds - done_s, prompt.deadline_s))
    return found
