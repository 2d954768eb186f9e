"""When one more prompt would end on a replica, and what that means for the prompts that wait. Pure.

A prefill replica orders its prompts by `engine.scheduling.edf`. So a new prompt may pass waiting
prompts where it can be on time and makes none of them late.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.scheduling.edf import MOST_IN_EXACT_ORDER, most_on_time, shortest_first


@dataclass(frozen=True, slots=True)
class EdfPrompt:
    """A prompt that takes `length` seconds to compute."""

    length: float
    deadline_s: float
    arrival: int = 0


@dataclass(frozen=True, slots=True)
class EdfForecast:
    """When a prompt ends, and whether it `feasible`: in time, and nobody is late for it.

    `work_s` is all that is to be done before it if it came last, `behind` how many it delays.
    """

    ends_s: float
    feasible: bool
    work_s: float
    behind: int = 0


def forecast_prompt(
    waiting: Sequence[EdfPrompt], new: EdfPrompt, lead_s: float, now: float, margin_s: float = 0.0
) -> EdfForecast:
    """Where `new` comes behind those that wait, and behind `lead_s` of other work.

    First tokens are to come `margin_s` before they are due, or at least no later for `new`.
    """
    begin = now + lead_s
    kept = most_on_time(waiting, begin)
    work_s = lead_s + sum(due.length for due in waiting)
    if not _is_feasible(kept, new, begin, margin_s):
        # Behind those in time, and then the shortest first.
        known = {id(due) for due in kept}
        shorter = (due for due in waiting if id(due) not in known and due.length < new.length)
        ahead = sum(due.length for due in kept) + sum(due.length for due in shorter)
        return EdfForecast(begin + ahead + new.length, False, work_s)
    together = sorted([*kept, new], key=lambda due: due.deadline_s)
    end_s, behind = _end_of(new, together, begin)
    return EdfForecast(end_s, True, work_s, behind)


def _is_feasible(kept: Iterable[EdfPrompt], new: EdfPrompt, begin: float, margin_s: float) -> bool:
    """Whether all are in time where those due later than `new` come behind it."""
    end, behind = begin, []
    for due in kept:
        if due.deadline_s <= new.deadline_s:
            end += due.length
        else:
            behind.append(due)
    for due in (new, *behind):
        end += due.length
        if end > due.deadline_s - margin_s:
            return False
    return True


def _end_of(new: EdfPrompt, prompts: list[EdfPrompt], begin_s: float) -> tuple[float, int]:
    """When `new` ends among prompts that can all be on time, and how many end after it."""
    if len(prompts) > MOST_IN_EXACT_ORDER:
        earlier = [one.length for one in prompts if one.deadline_s <= new.deadline_s]
        return begin_s + sum(earlier), len(prompts) - len(earlier)
    end_s = begin_s
    for place, prompt in enumerate(shortest_first(prompts, begin_s), start=1):
        end_s += prompt.length
        if prompt is new:
            return end_s, len(prompts) - place
    raise AssertionError("the new prompt is one of those")
