"""Forecasts the end of one more prompt on a replica, and its effect on waiting prompts. Pure.

A prefill replica orders its prompts by `engine.scheduling.edf`. So a new prompt may pass waiting
prompts where it can be on time and makes none of them late.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.scheduling.edf import MOST_IN_EXACT_ORDER, by_deadline, most_on_time, shortest_first


@dataclass(frozen=True, slots=True)
class EdfPrompt:
    """A prompt that takes `length` seconds to compute."""

    length: float
    deadline_s: float
    arrival: int = 0


@dataclass(frozen=True, slots=True)
class EdfForecast:
    """The end of a prompt on a replica, and whether the prompt is feasible there.

    - `ends_s`: the time at which its computing ends.
    - `feasible`: the prompt is on time, and no waiting prompt misses its deadline for it.
    - `work_s`: the seconds of all work before it if it came last.
    - `behind`: the number of prompts that it delays.
    """

    ends_s: float
    feasible: bool
    work_s: float
    behind: int = 0


def forecast_prompt(
    waiting: Sequence[EdfPrompt], new: EdfPrompt, lead_s: float, now: float, margin_s: float = 0.0
) -> EdfForecast:
    """The forecast for a `new` prompt among waiting prompts, behind `lead_s` of other work.

    The new prompt and the prompts that it delays are to end `margin_s` before their deadlines.
    """
    begin_s = now + lead_s
    kept = most_on_time(waiting, begin_s)
    work_s = lead_s + sum(prompt.length for prompt in waiting)
    if not _is_feasible(kept, new, begin_s, margin_s):
        # It comes behind the prompts that are on time, and then by length.
        known = {id(prompt) for prompt in kept}
        late = (prompt for prompt in waiting if id(prompt) not in known)
        shorter = (prompt.length for prompt in late if prompt.length < new.length)
        ahead_s = sum(prompt.length for prompt in kept) + sum(shorter)
        return EdfForecast(begin_s + ahead_s + new.length, False, work_s)
    together = sorted([*kept, new], key=by_deadline)
    end_s, behind = _end_of(new, together, begin_s)
    return EdfForecast(end_s, True, work_s, behind)


def _is_feasible(
    kept: Iterable[EdfPrompt], new: EdfPrompt, begin_s: float, margin_s: float
) -> bool:
    """Whether all prompts are on time if those with later deadlines come behind the new one."""
    end_s, behind = begin_s, []
    for prompt in kept:
        if prompt.deadline_s <= new.deadline_s:
            end_s += prompt.length
        else:
            behind.append(prompt)
    for prompt in (new, *behind):
        end_s += prompt.length
        if end_s > prompt.deadline_s - margin_s:
            return False
    return True


def _end_of(new: EdfPrompt, prompts: list[EdfPrompt], begin_s: float) -> tuple[float, int]:
    """The end of `new` among prompts that can all be on time, and the number that end later."""
    if len(prompts) > MOST_IN_EXACT_ORDER:
        earlier = [one.length for one in prompts if one.deadline_s <= new.deadline_s]
        return begin_s + sum(earlier), len(prompts) - len(earlier)
    end_s = begin_s
    for place, prompt in enumerate(shortest_first(prompts, begin_s), start=1):
        end_s += prompt.length
        if prompt is new:
            return end_s, len(prompts) - place
    raise AssertionError("the new prompt is among them")
