"""Earliest deadline first for prompts, with as many prompts on time as possible. Pure.

Moore's algorithm (1968) finds a largest set of jobs that one machine can end by their deadlines.
Of that set the shortest job goes first for which the deadlines of the other jobs leave time.
Replicas order their prompts by this module, and routers predict that order with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Protocol, TypeVar

# Bound: the exact order of more jobs takes longer to find than it is worth to know.
MOST_IN_EXACT_ORDER = 48


class EdfJob(Protocol):
    """A piece of work of a `length` in any unit, to be done by `deadline_s`.

    Jobs of one deadline are taken by rising `arrival`.
    """

    @property
    def length(self) -> float: ...  # noqa: D102

    @property
    def deadline_s(self) -> float: ...  # noqa: D102

    @property
    def arrival(self) -> int: ...  # noqa: D102


Job = TypeVar("Job", bound=EdfJob)


def by_deadline(job: EdfJob) -> tuple[float, int]:
    """The sort key of earliest deadline first."""
    return job.deadline_s, job.arrival


def most_on_time(jobs: Iterable[Job], begin_s: float, unit_s: float = 1.0) -> list[Job]:
    """A largest set of jobs that can all meet their deadlines, by deadline.

    The work begins at `begin_s`, and one unit of length takes `unit_s` seconds. Whenever the next
    job by deadline would be late, the longest job so far is given up.
    """
    longest: list[tuple[float, int, int, Job]] = []
    end_s = begin_s
    for place, job in enumerate(sorted(jobs, key=by_deadline)):
        heappush(longest, (-job.length, -job.arrival, -place, job))
        end_s += job.length * unit_s
        if end_s > job.deadline_s:
            end_s -= heappop(longest)[3].length * unit_s
    return sorted((entry[3] for entry in longest), key=by_deadline)


def shortest_first(on_time: Sequence[Job], begin_s: float, unit_s: float = 1.0) -> Iterator[Job]:
    """The order of jobs that can all be on time, given by deadline.

    A job goes first where it is the shortest and every job with an earlier deadline can wait for
    it. So all jobs stay on time.
    """
    left = list(on_time)
    while left:
        end_s, slack_s = begin_s, float("inf")
        best = left[0]
        for job in left:
            seconds = job.length * unit_s
            if seconds <= slack_s and job.length < best.length:
                best = job
            end_s += seconds
            slack_s = min(slack_s, job.deadline_s - end_s)
        yield best
        left.remove(best)
        begin_s += best.length * unit_s
