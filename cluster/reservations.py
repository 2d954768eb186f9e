"""When those that were refused may come back: a queue that exists on paper only. Pure.

Each refused request is given a time of its own, one behind the other at the pace at which the
cluster works, so that they do not return at once. Who comes back is known by its tenant and
prompt, and goes before new arrivals, for which the times that were given away count as work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

_MOST = 4096
# Predictions are never exact: the times given are that much further apart than the work is long.
_PACE = 1.15
# A client may be early by this, and late by a header that counts whole seconds.
EARLY_S = 0.1
LATE_S = 1.5
# Who has not come so soon after its time is taken to have given up, until it comes.
_NO_SHOW_S = 0.3
_LEARNING = 0.2


@dataclass(slots=True, eq=False)
class _Slot:
    key: Hashable
    at_s: float
    seconds: float
    missed: bool = False


class Reservations:
    """Times given to refused requests. `returning` is the learned share that comes back."""

    def __init__(self) -> None:
        self.returning = 1.0
        self._slots: deque[_Slot] = deque()
        self._by_key: dict[Hashable, deque[_Slot]] = {}
        self._end_s = 0.0

    def __len__(self) -> int:
        return len(self._slots)

    def reserve(self, key: Hashable, seconds: float, earliest_s: float, now: float) -> float:
        """A time to come back, at `earliest_s` or later, for work of so many seconds.

        Who has a time that is still to come is told that again.
        """
        self._expire(now)
        for slot in self._by_key.get(key, ()):
            if slot.at_s > now:
                return slot.at_s
        at_s = max(self._end_s, earliest_s)
        if len(self._slots) < _MOST:
            slot = _Slot(key, at_s, seconds)
            self._slots.append(slot)
            self._by_key.setdefault(key, deque()).append(slot)
            self._end_s = at_s + _PACE * seconds * self.returning
        return at_s

    def claim(self, key: Hashable, now: float) -> bool:
        """Whether this request was told to come about now; its time is then used up."""
        self._expire(now)
        for slot in self._by_key.get(key, ()):
            if slot.at_s - EARLY_S <= now:
                self._drop(slot)
                self._slots.remove(slot)
                self._learn(1.0)
                return True
        return False

    def due_s(self, now: float, until_s: float) -> float:
        """Seconds of work that is expected to come back until then."""
        self._expire(now)
        total = 0.0
        for slot in self._slots:
            if slot.at_s > until_s:
                break
            if not slot.missed:
                total += slot.seconds
        return total * self.returning

    def _expire(self, now: float) -> None:
        for slot in self._slots:
            if slot.at_s + _NO_SHOW_S >= now:
                break
            if not slot.missed:
                slot.missed = True
                self._learn(0.0)
        while self._slots and self._slots[0].at_s + LATE_S < now:
            self._drop(self._slots.popleft())

    def _drop(self, slot: _Slot) -> None:
        slots = self._by_key[slot.key]
        slots.remove(slot)
        if not slots:
            del self._by_key[slot.key]

    def _learn(self, came: float) -> None:
        self.returning += _LEARNING * (came - self.returning)
