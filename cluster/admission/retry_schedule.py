"""Promises refused requests a retry time. Pure.

A refused request is told the time at which the work before it will have been computed. That work
is what is assigned to replicas, and then the promised retries before it. Retry times are further
apart than the work is long, because predictions have errors. So a request that returns on time
finds next to nothing to wait for, and has nearly its whole budget for a slow computation.

A returning request is known by its tenant and prompt, and goes before new arrivals. New arrivals
may have what is left. The schedule counts the promised retries that a new arrival would make late,
weighted by the share of retries that came lately.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import takewhile

# Bound: the least time after which a retry is worth a request.
SOONEST_S = 0.05
# Bound: promised retries in memory.
_MOST = 4096
# Tuned for retries that are admitted: retry times are so many times further apart than their work.
_SPACING = 1.3
# Tuned for the same: the part of a promised retry's slack that new arrivals may use up.
_SHARED = 0.6
# Promise: how early a client may be, and how late, as a header counts whole seconds.
EARLY_S = 0.1
LATE_S = 1.5
# Tuned to free the time early: a client that is so late is taken to have given up, until it comes.
_NO_SHOW_S = 0.3
# Bound: how long a returned request keeps its time undecided; the batch lane may wait for days.
_CLAIMED_S = 600.0
# Tuned to follow a change of clients: weight of the newest retry in the return rate.
_LEARNING = 0.2
# Tuned for errors of the return rate: how many times more retries may come than came lately.
_MORE = 1.25
# Tuned for the same, where a request goes behind the others: the greatest such factor.
_MOST_MORE = 4.0


@dataclass(slots=True, eq=False)
class _PromisedRetry:
    """`seconds` of work that may begin between `at_s` and `slack_s` later."""

    key: Hashable
    at_s: float
    seconds: float
    slack_s: float
    missed: bool = False
    claimed: bool = False


class RetrySchedule:
    """The retry times of refused requests. `return_rate` is the learned share that comes back."""

    def __init__(self) -> None:
        self.return_rate = 1.0
        # In the order of their times: those that may come, and those that did not come in time.
        self._retries: list[_PromisedRetry] = []
        self._missed: deque[_PromisedRetry] = deque()
        # Seconds of work in `_retries`, by whether the retry is claimed.
        self._work_s = {False: 0.0, True: 0.0}
        self._by_key: dict[Hashable, list[_PromisedRetry]] = {}
        self._end_s = 0.0

    def __len__(self) -> int:
        return len(self._retries) + len(self._missed)

    def promise(
        self, key: Hashable, seconds: float, slack_s: float, earliest_s: float, now: float
    ) -> float:
        """A retry time, at `earliest_s` or later, for work of `seconds`.

        The work may begin `slack_s` later. A request whose time is still to come is told the same
        time again.
        """
        self._expire(now)
        for retry in self._by_key.get(key, ()):
            if retry.at_s > now and not retry.claimed:
                return retry.at_s
        # Behind the last retry, but not behind retries that are known by now not to come.
        latest_s = earliest_s + _SPACING * (seconds + self._standing_s(key))
        at_s = min(max(self._end_s, earliest_s), latest_s)
        if len(self) < _MOST:
            retry = _PromisedRetry(key, at_s, seconds, slack_s)
            self._enter(retry)
            self._by_key.setdefault(key, []).append(retry)
            self._end_s = at_s + _SPACING * seconds * min(1.0, _MORE * self.return_rate)
        return at_s

    def claim(self, key: Hashable, now: float) -> bool:
        """Whether this request was told to come about now.

        Its time is kept until `settle`, which the caller must call once.
        """
        self._expire(now)
        for retry in self._by_key.get(key, ()):
            if retry.at_s - EARLY_S <= now and not retry.claimed:
                self._leave(retry)
                retry.claimed = True
                self._enter(retry)
                self._learn(1.0)
                return True
        return False

    def is_due(self, key: Hashable, now: float) -> bool:
        """Whether `claim` would be True."""
        self._expire(now)
        retries = self._by_key.get(key, ())
        return any(retry.at_s - EARLY_S <= now and not retry.claimed for retry in retries)

    def settle(self, key: Hashable) -> None:
        """Use up the time of a claimed retry, because its request is decided or gone."""
        for retry in self._by_key.get(key, ()):
            if retry.claimed:
                self._drop(retry)
                return

    def late(self, begin_s: float, seconds: float, now: float) -> float:
        """The expected number of promised retries that `seconds` more work would make late.

        The work would be done before them, from `begin_s` on.
        """
        self._expire(now)
        late, without_s, with_s = 0, begin_s, begin_s + seconds
        for retry in self._retries:
            if with_s <= retry.at_s:
                break
            without_s, with_s = max(without_s, retry.at_s), max(with_s, retry.at_s)
            late += without_s <= retry.at_s + _SHARED * retry.slack_s < with_s
            took_s = retry.seconds * (1.0 if retry.claimed else self.return_rate)
            without_s, with_s = without_s + took_s, with_s + took_s
        return late * self.return_rate

    def _standing_s(self, key: Hashable) -> float:
        """The most seconds of work that the other promised retries may bring."""
        work_s = dict(self._work_s)
        for retry in self._by_key.get(key, ()):
            if retry.claimed or not retry.missed:
                work_s[retry.claimed] -= retry.seconds
        share = min(1.0, _MOST_MORE * self.return_rate)
        return max(0.0, work_s[True]) + share * max(0.0, work_s[False])

    def _expire(self, now: float) -> None:
        if not (self._retries or self._missed):
            return
        for retry in self._begun(now):
            if retry.claimed:
                if retry.at_s + _CLAIMED_S < now:
                    self._drop(retry)
                continue
            self._leave(retry)
            retry.missed = True
            self._missed.append(retry)
            self._learn(0.0)
        while self._missed and self._missed[0].at_s + LATE_S < now:
            self._drop(self._missed[0])

    def _begun(self, now: float) -> list[_PromisedRetry]:
        """The retries that are late by now: all claimed ones, and those that did not come."""
        return list(takewhile(lambda retry: retry.at_s + _NO_SHOW_S < now, self._retries))

    def _enter(self, retry: _PromisedRetry) -> None:
        insort(self._retries, retry, key=lambda one: one.at_s)
        self._work_s[retry.claimed] += retry.seconds

    def _leave(self, retry: _PromisedRetry) -> None:
        """Take a retry out of the list that it is in."""
        if retry.missed and not retry.claimed:
            self._missed.remove(retry)
            return
        self._retries.remove(retry)
        self._work_s[retry.claimed] -= retry.seconds
        if not self._retries:
            self._work_s = {False: 0.0, True: 0.0}  # without the rounding of many sums

    def _drop(self, retry: _PromisedRetry) -> None:
        self._leave(retry)
        retries = self._by_key[retry.key]
        retries.remove(retry)
        if not retries:
            del self._by_key[retry.key]

    def _learn(self, came: float) -> None:
        self.return_rate += _LEARNING * (came - self.return_rate)
