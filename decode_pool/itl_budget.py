"""Limits other work beside steps, so that the tokens of streams come in time. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median

from engine.types.urgency import Urgency

# Numerics: the usual time of a step is the median of so many steps.
RECENT_STEPS = 9
# Tuned: the share of the budget that slices use; the rest is for delays on a busy host.
_SLICE_SHARE = 0.8
# Tuned: by this factor streams slow down more where prompts are pressed.
_PRESSED_FACTOR = 1.5
# A bound: without streams a slice ends after so long, so that new requests are seen.
_LONE_SLICE_S = 0.02


class ItlBudget:
    """The time from one step to the next: at most `budget_s`, and at most `factor` usual steps.

    Without a `factor` the budget alone counts.
    """

    def __init__(self, budget_s: float, factor: float | None) -> None:
        self.budget_s = budget_s
        self._factor = factor
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)
        self._undisturbed_s: float | None = None
        self._step_s: float | None = None

    @property
    def step_s(self) -> float | None:
        """The usual time of a step; None before the first step."""
        return median(self._recent) if self._recent else None

    def itl_s(self, urgency: Urgency = Urgency.PROMPTS) -> float:
        """The most time from the begin of one step to the begin of the next."""
        usual_s = self.step_s if self._undisturbed_s is None else self._undisturbed_s
        if usual_s is None or self._factor is None or urgency is Urgency.URGENT:
            return self.budget_s
        factor = self._factor * (_PRESSED_FACTOR if urgency is Urgency.PRESSED else 1)
        return min(self.budget_s, factor * usual_s)

    def stepped(self, seconds: float, undisturbed_s: float | None = None) -> None:
        """Note the time of a step.

        `undisturbed_s` is the usual time of a step that shares its cores with no other engine, if
        this differs (see `decode_pool/shared_cores.py`).
        """
        self._recent.append(seconds)
        self._undisturbed_s = undisturbed_s
        self._step_s = seconds

    def idle(self) -> None:
        """Note that there was no stream to step."""
        self._step_s = None

    def slice_s(self, urgency: Urgency = Urgency.PROMPTS) -> float:
        """The seconds that a slice of a pass may take now; 0 means a single layer.

        Urgent prompts may use the whole budget. Other prompts leave a fifth of the budget, but
        they may always use half of what a long step leaves.
        """
        if self._step_s is None:
            return min(self.budget_s, _LONE_SLICE_S)
        left_s = max(0.0, self.budget_s - self._step_s)
        if urgency is Urgency.URGENT:
            return left_s
        usable_s = max(_SLICE_SHARE * self.budget_s - self._step_s, left_s / 2)
        return max(0.0, min(self.itl_s(urgency) - self._step_s, usable_s))
