"""Who may join the decode batch now: anyone (continuous), or the members of a batch. Pure.

Continuous batching (Yu et al., "Orca", OSDI 2022) lets a request join at any step. The other two
are what it is compared with. A batch is formed of the requests that wait, oldest first, and runs
until all of them have ended; only then the next one is formed. *static* forms it at once; with a
*window* it waits for more, from the arrival of its first request on, unless it is full.

A member that ended takes part in no further step, and one that lost its blocks comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from decode_pool.config import BatchingName


@dataclass(frozen=True, slots=True)
class Queue:
    """Who waits, oldest first, since when the first of them, and for how many there is room.

    More than wait: the batch would not be full.
    """

    owners: Sequence[str]
    first_s: float
    room: int


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
    """One batch after the other; `window_s` after its first request's arrival, or when full."""

    continuous = False

    def __init__(self, window_s: float = 0.0) -> None:
        self._window_s = window_s
        self._members: set[str] = set()

    def form(self, queue: Queue, now: float) -> float | None:
        """See Batching; nothing is due while a member of the last batch is here."""
        if self._members or not queue.owners:
            return None
        due_s = queue.first_s + self._window_s
        if now < due_s and len(queue.owners) < queue.room:
            return due_s - now
        self._members = set(queue.owners[: max(1, queue.room)])
        return None

    def may_join(self, owner: str) -> bool:
        """Members alone."""
        return owner in self._members

    def left(self, owner: str) -> None:
        """With the last one the batch is over."""
        self._members.discard(owner)


def make_batching(name: BatchingName, window_s: float) -> Batching:
    """The policy of that name."""
    if name == "continuous":
        return Continuous()
    return Formed(window_s if name == "window" else 0.0)
