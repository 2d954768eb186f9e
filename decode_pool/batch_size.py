"""How many requests may share a step, so that a step keeps the budget. Pure.

The limit falls when steps take longer than the budget, and rises again, at most to `most`, when
they take clearly less while the batch is full: at three quarters, as no more are let in than the
limit, and some of these are on their way. A size that was too slow is not tried again for a while,
so that the limit rests below it; unless steps got so much faster, as when somebody else on the
cores came to rest, that it would keep the budget however its time grows with it.
"""

from __future__ import annotations

from collections import deque
from statistics import median

# Steps between two changes; a change is judged by the median of as many.
_WINDOW = 8
# Below that part of the budget there is room for more.
_ROOMY = 0.85
# Of the limit, what a full batch has at least: the part that the batch lane may fill.
_FULL = 0.75
# Windows for which a size that was too slow is not tried again.
_SHY_WINDOWS = 16
# Fewer share a step for nothing: what it takes is the weights' reading, or somebody else's doing.
_LEAST = 8
# No step is faster, so none is taken to be.
_LEAST_S = 1e-4


class BatchSize:
    """The most requests of a step: `limit`, between 8 and `most`, or `most` where that is less."""

    def __init__(self, most: int, budget_s: float) -> None:
        self.limit = most
        self._most = most
        self._budget_s = budget_s
        self._steps: deque[tuple[int, float]] = deque(maxlen=_WINDOW)
        self._too_slow: int | None = None
        self._shy = 0

    def stepped(self, requests: int, seconds: float) -> None:
        """A step of so many requests took so long."""
        self._steps.append((requests, seconds))
        if len(self._steps) < _WINDOW:
            return
        usual_s = median(took_s for _, took_s in self._steps)
        batch = min(count for count, _ in self._steps)
        self._steps.clear()
        self._shy = max(0, self._shy - 1)
        if usual_s > self._budget_s:
            self._shrink(batch)
        elif usual_s < _ROOMY * self._budget_s:
            # A step's time grows with its requests at most in proportion: part of it does not grow.
            safe = int(batch * _ROOMY * self._budget_s / max(usual_s, _LEAST_S))
            self._grow(safe, full=batch >= int(_FULL * self.limit))

    def _shrink(self, batch: int) -> None:
        self._too_slow, self._shy = batch, _SHY_WINDOWS
        least = min(_LEAST, self._most)
        self.limit = max(least, min(self.limit, batch - max(1, batch // 8)))

    def _grow(self, safe: int, *, full: bool) -> None:
        ceiling = self._most
        if self._too_slow is not None and self._shy:
            ceiling = min(ceiling, self._too_slow - 1)
        tried = min(ceiling, self.limit + max(1, self.limit // 8)) if full else 0
        self.limit = max(self.limit, tried, min(self._most, safe))
