"""What one more prompt means for those that wait on a replica. Pure.

A prefill replica computes those that can meet their deadlines first, as many as possible (Moore,
1968), among them the shortest for which the others' deadlines leave time. So a prompt may come
where it can be in time without another becoming late.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

# Beyond that many the exact place of one is not worth the time to find it.
_EXACT = 48


@dataclass(frozen=True, slots=True)
class EdfPrompt:
    """A prompt that takes so many seconds and has its deadline."""

    seconds: float
    deadline_s: float


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
    kept = in_time(waiting, begin)
    work_s = lead_s + sum(due.seconds for due in waiting)
    if not _is_feasible(kept, new, begin, margin_s):
        # Behind those in time, and then the shortest first.
        known = {id(due) for due in kept}
        shorter = (due for due in waiting if id(due) not in known and due.seconds < new.seconds)
        ahead = sum(due.seconds for due in kept) + sum(due.seconds for due in shorter)
        return EdfForecast(begin + ahead + new.seconds, False, work_s)
    together = sorted([*kept, new], key=lambda due: due.deadline_s)
    end_s, behind = _place_of(new, together, begin)
    return EdfForecast(end_s, True, work_s, behind)


def _is_feasible(kept: Iterable[EdfPrompt], new: EdfPrompt, begin: float, margin_s: float) -> bool:
    """Whether all are in time where those due later than `new` come behind it."""
    end, behind = begin, []
    for due in kept:
        if due.deadline_s <= new.deadline_s:
            end += due.seconds
        else:
            behind.append(due)
    for due in (new, *behind):
        end += due.seconds
        if end > due.deadline_s - margin_s:
            return False
    return True


def in_time(prompts: Iterable[EdfPrompt], begin: float) -> list[EdfPrompt]:
    """A largest set that can all meet their deadlines, by deadline.

    Whenever the next by deadline would be late, the longest so far is given up.
    """
    longest: list[tuple[float, int, EdfPrompt]] = []
    end = begin
    for place, due in enumerate(sorted(prompts, key=lambda due: due.deadline_s)):
        heappush(longest, (-due.seconds, -place, due))
        end += due.seconds
        if end > due.deadline_s:
            end -= heappop(longest)[2].seconds
    return sorted((entry[2] for entry in longest), key=lambda due: due.deadline_s)


def _place_of(new: EdfPrompt, prompts: list[EdfPrompt], begin: float) -> tuple[float, int]:
    """When `new` ends, and how many come behind it.

    Shortest first, where all those that are due before can wait so long.
    """
    if len(prompts) > _EXACT:
        earlier = [due.seconds for due in prompts if due.deadline_s <= new.deadline_s]
        return begin + sum(earlier), len(prompts) - len(earlier)
    left, clock = list(prompts), begin
    while left:
        best = first_of(left, clock)
        clock += best.seconds
        if best is new:
            break
        left.remove(best)
    return clock, len(left) - 1


def first_of(left: Sequence[EdfPrompt], clock: float) -> EdfPrompt:
    """Who is computed first of prompts that can all be in time, given by deadline."""
    best, end, slack = left[0], clock, float("inf")
    for due in left:
        if due.seconds <= slack and due.seconds < best.seconds:
            best = due
        end += due.seconds
        slack = min(slack, due.deadline_s - end)
    return best
