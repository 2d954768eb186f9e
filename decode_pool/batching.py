"""The policies by which requests join the decode batch. Pure.

Continuous batching (Yu et al., "Orca", OSDI 2022) lets a request join at any step. The two other
policies exist to be compared with it. They form a batch of the waiting requests, in order. The
batch runs until all of its members have ended, and only then the next batch is formed. *static*
forms a batch at once. *window* waits for more requests until the batch is full, or until a waiting
request has waited for its window.

A member that ended takes part in no further step. A preempted member comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from decode_pool.config import BatchingName


@dataclass(frozen=True, slots=True)
class Candidate:
    """A waiting request: its arrival and its own window (seconds); None: the pool's window."""

    owner: str
    arrived_s: float
    window_s: float | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """The waiting requests in order, and the number that fits into one batch."""

    waiting: Sequence[Candidate]
    capacity: int


class Batching(Protocol):
    """Decides which requests may join the batch; called before every admission."""

    @property
    def continuous(self) -> bool:
        """Whether no batches are formed."""
        ...

    def form(self, queue: Queue, now: float) -> float | None:
        """Form the next batch if it is due; else the seconds until it is due by time, or None."""
        ...

    def may_join(self, owner: str) -> bool:
        """Whether this request may get blocks now, for the first time or again."""
        ...

    def left(self, owner: str) -> None:
        """Note that a request has ended. Idempotent."""
        ...


class Continuous:
    """Every request may join at any time."""

    continuous = True

    def form(self, queue: Queue, now: float) -> float | None:
        """Form nothing."""
        return None

    def may_join(self, owner: str) -> bool:
        """True for every request."""
        return True

    def left(self, owner: str) -> None:
        """Note nothing."""


class Formed:
    """One batch after the other, formed when it is full or when the first window has ended.

    A request without a window of its own has `window_s`. With None a batch is formed at once.
    """

    continuous = False

    def __init__(self, window_s: float | None = None) -> None:
        self._window_s = window_s
        self._members: set[str] = set()

    def form(self, queue: Queue, now: float) -> float | None:
        """See Batching; no batch is due while a member of the last batch is here."""
        if self._members or not queue.waiting:
            return None
        left_s = min(self._ends_s(one) for one in queue.waiting) - now
        if left_s > 0 and len(queue.waiting) < queue.capacity:
            return left_s
        self._members = {one.owner for one in queue.waiting[: max(1, queue.capacity)]}
        return None

    def may_join(self, owner: str) -> bool:
        """True for members of the batch."""
        return owner in self._members

    def left(self, owner: str) -> None:
        """Note that a member has ended; with the last member the batch is over."""
        self._members.discard(owner)

    def _ends_s(self, one: Candidate) -> float:
        """The end of a waiting request's window."""
        if self._window_s is None:
            return one.arrived_s
        return one.arrived_s + (self._window_s if one.window_s is None else one.window_s)


def make_batching(name: BatchingName, window_s: float) -> Batching:
    """The policy of that name."""
    if name == "continuous":
        return Continuous()
    return Formed(window_s if name == "window" else None)
