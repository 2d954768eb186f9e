"""Who may join the decode batch now: anyone (continuous), or the members of a batch. Pure.

Continuous batching (Yu et al., "Orca", OSDI 2022) lets a request join at any step. The other two
are what it is compared with. A batch is formed of the requests that wait, in order, and runs
until all of them have ended; only then the next one is formed. *static* forms it at once; with a
*window* it waits for more, until one of those that wait has done so for its window, unless it is
full.

A member that ended takes part in no further step, and one that lost its blocks comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from decode_pool.config import BatchingName


@dataclass(frozen=True, slots=True)
class Candidate:
    """Who waits, since when, and for how long at most (s); None: for the pool's window."""

    owner: str
    arrived_s: float
    window_s: float | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """Who waits, in order, and for how many there is room.

    More than wait: the batch would not be full.
    """

    waiting: Sequence[Candidate]
    capacity: int


class Batching(Protocol):
    """Says who may join. Asked before every admission."""

    @property
    def continuous(self) -> bool:
        """Whether there is nothing to form."""
        ...

    def form(self, queue: Queue, now: float) -> float | None:
        """Form the next batch where it is due; else the seconds until it is, or None."""
        ...

    def may_join(self, owner: str) -> bool:
        """Whether this request may be given blocks now, the first time or again."""
        ...

    def left(self, owner: str) -> None:
        """A request has ended. Idempotent."""
        ...


class Continuous:
    """Everyone may join at any time."""

    continuous = True

    def form(self, queue: Queue, now: float) -> float | None:
        """Nothing to form."""
        return None

    def may_join(self, owner: str) -> bool:
        """Always."""
        return True

    def left(self, owner: str) -> None:
        """Nothing to note."""


class Formed:
    """One batch after the other, when full or when the first window of those that wait has ended.

    A request that has none of its own has `window_s`; None: there are no windows.
    """

    continuous = False

    def __init__(self, window_s: float | None = None) -> None:
        self._window_s = window_s
        self._members: set[str] = set()

    def form(self, queue: Queue, now: float) -> float | None:
        """See Batching; nothing is due while a member of the last batch is here."""
        if self._members or not queue.waiting:
            return None
        left_s = min(self._ends_s(one) for one in queue.waiting) - now
        if left_s > 0 and len(queue.waiting) < queue.capacity:
            return left_s
        self._members = {one.owner for one in queue.waiting[: max(1, queue.capacity)]}
        return None

    def may_join(self, owner: str) -> bool:
        """Members alone."""
        return owner in self._members

    def left(self, owner: str) -> None:
        """With the last one the batch is over."""
        self._members.discard(owner)

    def _ends_s(self, one: Candidate) -> float:
        """When its window ends."""
        if self._window_s is None:
            return one.arrived_s
        return one.arrived_s + (self._window_s if one.window_s is None else one.window_s)


def make_batching(name: BatchingName, window_s: float) -> Batching:
    """The policy of that name."""
    if name == "continuous":
        return Continuous()
    return Formed(window_s if name == "window" else None)
