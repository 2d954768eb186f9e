"""Delays steps where other engines of this host need the cores meanwhile. Pure.

An engine that has a device of its own never enters this module. On shared cores a decode step slows
down the prompts that other engines compute. So the loop keeps an interval between two steps: more
streams get their token from one step, and the steps take less of the cores.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from decode_pool.itl_budget import RECENT_STEPS, ItlBudget
from engine.types.urgency import Urgency

# Tuned: after so many disturbed steps in a row the undisturbed steps are of another batch.
_FORGET_AFTER_STEPS = 500
# Tuned: the interval as a share of the time that streams may wait for a token.
_INTERVAL_SHARE = 0.7
# Tuned: the interval is at most this share of the budget, as the next step may take longer.
_LONGEST_SHARE = 0.65
# Tuned: beside urgent prompts the interval is at most this share of the budget.
_URGENT_SHARE = 0.78
# Tuned: beside pressed prompts a step takes at most this share of its interval.
_STEP_SHARE = 0.75
# Tuned: beside urgent prompts a step may be late by this share of its usual time.
_LATE_SHARE = 0.3
# Tuned: a stream that joins after a wait can make up for so many intervals.
_SPARE_INTERVALS = 2
# A bound: a timer cannot wait for less time.
_LEAST_WAIT_S = 0.0005


class StepInterval:
    """The interval between two steps, and the time of an undisturbed step."""

    def __init__(self, itl: ItlBudget) -> None:
        self._itl = itl
        self._undisturbed: deque[float] = deque(maxlen=RECENT_STEPS)
        self._disturbed = 0  # in a row

    def stepped(self, seconds: float, *, disturbed: bool) -> float | None:
        """Note the time of a step; returns the usual time of an undisturbed step, if known.

        `disturbed`: other engines computed prompts beside the step. Such a step is slower, and
        streams must not be slowed down because of it once more.
        """
        self._disturbed = self._disturbed + 1 if disturbed else 0
        if not disturbed:
            self._undisturbed.append(seconds)
        elif self._disturbed >= _FORGET_AFTER_STEPS:
            self._undisturbed.clear()
        return median(self._undisturbed) if self._undisturbed else None

    def wait_s(self, since_s: float, urgency: Urgency = Urgency.PROMPTS) -> float:
        """The seconds that the next step waits, if the last step began `since_s` ago."""
        if urgency is Urgency.NONE:
            return 0.0
        wait_s = self._interval_s(urgency) - since_s
        return wait_s if wait_s >= _LEAST_WAIT_S else 0.0

    def may_wait(self, tokens: int) -> bool:
        """Whether a stream with so many tokens to come may join after the wait for a step.

        The prompts beside it are urgent. The stream loses up to two intervals. Its tokens make up
        for these, where the interval leaves enough of each token's budget.
        """
        interval_s = max(self._interval_s(Urgency.URGENT), self._itl.step_s or 0.0)
        return tokens * (self._itl.budget_s - interval_s) >= _SPARE_INTERVALS * interval_s

    def _interval_s(self, urgency: Urgency) -> float:
        """From the begin of one step to the next; shorter beside urgent prompts.

        A longer interval gives little more of the cores. It pays where prompts would otherwise be
        late, or would not be computed at all.
        """
        step_s, longest_s = self._itl.step_s or 0.0, _LONGEST_SHARE * self._itl.budget_s
        if urgency is Urgency.URGENT:
            left_s = self._itl.budget_s - _LATE_SHARE * step_s
            return min(max(left_s, longest_s), _URGENT_SHARE * self._itl.budget_s)
        itl_s = self._itl.itl_s(urgency)
        interval_s = _INTERVAL_SHARE * itl_s
        if urgency is Urgency.PRESSED:
            interval_s = max(interval_s, min(step_s / _STEP_SHARE, itl_s))
        return min(interval_s, longest_s)
