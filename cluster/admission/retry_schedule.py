"""When those that were refused may come back: a queue that exists on paper only. Pure.

Each refused request is given the time at which what is in front of it will have been computed: all
that is placed, then the others that were told to come back, at a pace that leaves some room for
errors. So whoever returns finds next to nothing to wait for, and has nearly its whole budget for
being computed more slowly than was thought.

Who comes back is known by its tenant and prompt, and goes before new arrivals. Those may have what
is left: a new arrival that would make a promised one late, counted by the share of the promised
who did come lately, waits or is told to come back itself.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable
from dataclasses import dataclass

_MOST = 4096
# Predictions are never exact: the times given are that much further apart than the work is long.
_PACE = 1.3
# Of the time by which a promised one may begin late, the share that new arrivals may use up.
_SHARED = 0.6
# A client may be early by this, and late by a header that counts whole seconds.
EARLY_S = 0.1
LATE_S = 1.5
# Who has not come so soon after its time is taken to have given up, until it comes.
_NO_SHOW_S = 0.3
# Who came keeps its place until it is decided, but for the batch lane, which may wait for days.
_HERE_S = 600.0
_LEARNING = 0.2
# More of them may come than did lately.
_MORE = 1.25
# And surely not so many times more.
_MOST_MORE = 4.0


@dataclass(slots=True, eq=False)
class _Slot:
    """`seconds` of work that may begin `slack_s` after `at_s`, not later."""

    key: Hashable
    at_s: float
    seconds: float
    slack_s: float
    missed: bool = False
    here: bool = False


class RetrySchedule:
    """Times given to refused requests. `returning` is the learned share that comes back."""

    def __init__(self) -> None:
        self.returning = 1.0
        self._slots: list[_Slot] = []  # in the order of their times
        self._by_key: dict[Hashable, list[_Slot]] = {}
        self._end_s = 0.0

    def __len__(self) -> int:
        return len(self._slots)

    def reserve(
        self, key: Hashable, seconds: float, slack_s: float, earliest_s: float, now: float
    ) -> float:
        """A time to come back, at `earliest_s` or later, for work of so many seconds.

        It may begin as late as `slack_s` after that. Who has a time that is still to come is told
        that again.
        """
        self._expire(now)
        for slot in self._by_key.get(key, ()):
            if slot.at_s > now and not slot.here:
                return slot.at_s
        # Behind the last, but not behind those of whom it is known by now that they do not come.
        latest_s = earliest_s + _PACE * (seconds + self._standing_s(key))
        at_s = min(max(self._end_s, earliest_s), latest_s)
        if len(self._slots) < _MOST:
            slot = _Slot(key, at_s, seconds, slack_s)
            insort(self._slots, slot, key=lambda one: one.at_s)
            self._by_key.setdefault(key, []).append(slot)
            self._end_s = at_s + _PACE * seconds * min(1.0, _MORE * self.returning)
        return at_s

    def claim(self, key: Hashable, now: float) -> bool:
        """Whether this request was told to come about now.

        Its place is kept until `settle`, which whoever claimed must call once.
        """
        self._expire(now)
        for slot in self._by_key.get(key, ()):
            if slot.at_s - EARLY_S <= now and not slot.here:
                slot.here = True
                self._learn(1.0)
                return True
        return False

    def settle(self, key: Hashable) -> None:
        """One that claimed its time is decided, or gone: the time is used up."""
        for slot in self._by_key.get(key, ()):
            if slot.here:
                self._drop(slot)
                return

    def late(self, begin_s: float, seconds: float, now: float) -> float:
        """How many of the promised, as expected, so much more work would make late.

        It would come in front of them, from `begin_s` on.
        """
        self._expire(now)
        late, without_s, with_s = 0, begin_s, begin_s + seconds
        for slot in self._slots:
            if with_s <= slot.at_s:
                break
            if slot.missed and not slot.here:
                continue
            without_s, with_s = max(without_s, slot.at_s), max(with_s, slot.at_s)
            late += without_s <= slot.at_s + _SHARED * slot.slack_s < with_s
            took_s = slot.seconds * (1.0 if slot.here else self.returning)
            without_s, with_s = without_s + took_s, with_s + took_s
        return late * self.returning

    def _standing_s(self, key: Hashable) -> float:
        """The most work that is to be expected of the others who have a time."""
        share = min(1.0, _MOST_MORE * self.returning)
        return sum(
            slot.seconds * (1.0 if slot.here else share)
            for slot in self._slots
            if slot.key != key and (slot.here or not slot.missed)
        )

    def _expire(self, now: float) -> None:
        gone = []
        for slot in self._slots:
            if slot.at_s + _NO_SHOW_S >= now:
                break
            if not slot.missed and not slot.here:
                slot.missed = True
                self._learn(0.0)
            if slot.at_s + (_HERE_S if slot.here else LATE_S) < now:
                gone.append(slot)
        for slot in gone:
            self._drop(slot)

    def _drop(self, slot: _Slot) -> None:
        self._slots.remove(slot)
        slots = self._by_key[slot.key]
        slots.remove(slot)
        if not slots:
            del self._by_key[slot.key]

    def _learn(self, came: float) -> None:
        self.returning += _LEARNING * (came - self.returning)
