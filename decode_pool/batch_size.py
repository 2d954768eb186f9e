"""Limits the requests of a step, so that a step keeps the budget. Pure.

The limit falls when steps take longer than the budget. It rises again, at most to `most`, when
steps take clearly less and the batch is nearly full. Three quarters of the limit count as nearly
full, because some of the admitted requests are still on their way. A size that was too slow is not
tried again for a while, so the limit stays below it. It is tried sooner when steps got much faster,
for example because another engine yielded the cores.
"""

from __future__ import annotations

from collections import deque
from statistics import median

# Tuned: a change is judged by the median of so many steps.
_WINDOW = 8
# Tuned: below this share of the budget a batch may grow.
_SPARE_SHARE = 0.85
# A promise: a batch of this share of the limit counts as full; the batch lane may fill as much.
_FULL_SHARE = 0.75
# Tuned: for so many windows a size that was too slow is not tried again.
_RETRY_WINDOWS = 16
# A bound: a step of fewer requests is no faster, as it reads all weights anyway.
_LEAST = 8
# Tuned: the limit changes by one part in so many.
_STEP_PARTS = 8
# Numerics: no step counts as faster than this (seconds).
_LEAST_S = 1e-4


class BatchSize:
    """The most requests of a step: `limit`, between 8 and `most`, or `most` where that is less.

    A stream that stands still may join up to `most`, because it should not wait for others to end.
    """

    def __init__(self, most: int, budget_s: float) -> None:
        self.limit = self.most = most
        self._budget_s = budget_s
        self._steps: deque[tuple[int, float]] = deque(maxlen=_WINDOW)
        self._too_slow: int | None = None
        self._retry_in = 0

    def stepped(self, requests: int, seconds: float) -> None:
        """Note that a step of so many requests took `seconds`."""
        self._steps.append((requests, seconds))
        if len(self._steps) < _WINDOW:
            return
        usual_s = median(took_s for _, took_s in self._steps)
        batch = min(count for count, _ in self._steps)
        self._steps.clear()
        self._retry_in = max(0, self._retry_in - 1)
        if usual_s > self._budget_s:
            self._shrink(batch)
        elif usual_s < _SPARE_SHARE * self._budget_s:
            # A step's time grows with its requests at most in proportion: part of it does not grow.
            certain = int(batch * _SPARE_SHARE * self._budget_s / max(usual_s, _LEAST_S))
            self._grow(certain, full=batch >= int(_FULL_SHARE * self.limit))

    def _shrink(self, batch: int) -> None:
        self._too_slow, self._retry_in = batch, _RETRY_WINDOWS
        least = min(_LEAST, self.most)
        self.limit = max(least, min(self.limit, batch - max(1, batch // _STEP_PARTS)))

    def _grow(self, certain: int, *, full: bool) -> None:
        ceiling = self.most
        if self._too_slow is not None and self._retry_in:
            ceiling = min(ceiling, self._too_slow - 1)
        tried = min(ceiling, self.limit + max(1, self.limit // _STEP_PARTS)) if full else 0
        self.limit = max(self.limit, tried, min(self.most, certain))
