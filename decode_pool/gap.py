"""How long may be computed beside a step, so that the streams' tokens come in time. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median

from engine.types.urgency import Urgency

# Steps by whose median a step's usual time is judged.
_RECENT = 9
# After so many disturbed ones the batch may be another than the undisturbed were of.
_FORGOTTEN = 500
# Of the budget, what slices take at most: a busy host takes its part.
_SPARED = 0.8
# Of the time that may be between two steps, after how much the next one begins where the cores are
# of use to others meanwhile: it takes longer beside them. Less where that is the whole budget.
_PACE = 0.7
_LONGEST_PACE = 0.65
_URGENT_PACE = 0.78
# Of the gap that streams keep, what they have beside pressed prompts: on two cores, of which these
# get half beside streams that keep their gap, two thirds.
_PRESSED = 1.5
# Of the time between two steps beside those, what a step is to take at most. One that shares its
# cores takes longer, and would leave prompts no more than half of them.
_SHARE = 0.75
# Of a usual step, by how much the next one may be late beside prompts: it shares cores with them.
_LATE = 0.3
_LEAST_REST_S = 0.0005
# With no stream to hold up, how long a slice takes until somebody else is looked for.
_ALONE_S = 0.02


class ItlBudget:
    """The time between two steps: `budget_s` at most, and `factor` undisturbed steps.

    With no `factor` the budget alone counts.
    """

    def __init__(self, budget_s: float, factor: float | None) -> None:
        self._budget_s = budget_s
        self._factor = factor
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._undisturbed: deque[float] = deque(maxlen=_RECENT)
        self._disturbed = 0  # in a row
        self._step_s: float | None = None

    @property
    def step_s(self) -> float | None:
        """What a step usually takes; None before the first."""
        return median(self._recent) if self._recent else None

    def itl_s(self, urgency: Urgency = Urgency.PROMPTS) -> float:
        """The most time from one step's begin to the next one's, where a step leaves that."""
        steps = self._undisturbed if self._disturbed < _FORGOTTEN else self._recent
        steps = steps or self._recent
        if not steps or self._factor is None or urgency is Urgency.URGENT:
            return self._budget_s
        kept_s = self._factor * median(steps)
        return min(self._budget_s, kept_s * (_PRESSED if urgency is Urgency.PRESSED else 1))

    def stepped(self, seconds: float, *, disturbed: bool = False) -> None:
        """A step of the running streams took so long.

        `disturbed`: prompts in urgency shared its cores, for which streams are not to be slowed
        down the more.
        """
        self._recent.append(seconds)
        self._disturbed = self._disturbed + 1 if disturbed else 0
        if not disturbed:
            self._undisturbed.append(seconds)
        self._step_s = seconds

    def rested(self) -> None:
        """There was no stream to step."""
        self._step_s = None

    def slice_s(self, urgency: Urgency = Urgency.PROMPTS) -> float:
        """How long may be computed now; 0: as little as can be, so that it goes on at all.

        For urgent prompts the budget alone counts. Others leave a fifth of it for what else
        delays a token, but no more than half of what a long step leaves.
        """
        if self._step_s is None:
            return min(self._budget_s, _ALONE_S)
        left_s = max(0.0, self._budget_s - self._step_s)
        if urgency is Urgency.URGENT:
            return left_s
        spared_s = max(_SPARED * self._budget_s - self._step_s, left_s / 2)
        return max(0.0, min(self.itl_s(urgency) - self._step_s, spared_s))

    def rest_s(self, since_s: float, urgency: Urgency = Urgency.PROMPTS) -> float:
        """How long to rest, for prompts that others compute, where the last step began then.

        The streams' next tokens take less of the cores, as more of them come at once.
        """
        rest_s = self._pace_s(urgency) - since_s
        return rest_s if rest_s >= _LEAST_REST_S else 0.0

    def bears_rest(self, tokens: int) -> bool:
        """Whether a stream that may get so many more joins behind a rest, beside urgent prompts.

        With as many, the pace of its tokens leaves of their budgets what it takes to wait for that
        step, and as long for what came before.
        """
        pace_s = max(self._pace_s(Urgency.URGENT), self.step_s or 0.0)
        return tokens * (self._budget_s - pace_s) >= 2 * pace_s

    def _pace_s(self, urgency: Urgency) -> float:
        """From one step's begin to the next one's: beside urgent prompts what a late one leaves.

        A longer pace gives little more of the cores: it is worth it where some prompts would else
        be late, or not be computed at all.
        """
        longest_s = _LONGEST_PACE * self._budget_s
        if urgency is not Urgency.URGENT:
            itl_s = self.itl_s(urgency)
            pace_s = _PACE * itl_s
            if urgency is Urgency.PRESSED:
                pace_s = max(pace_s, min((self.step_s or 0.0) / _SHARE, itl_s))
            return min(pace_s, longest_s)
        left_s = self._budget_s - _LATE * (self.step_s or 0.0)
        return min(max(left_s, longest_s), _URGENT_PACE * self._budget_s)
