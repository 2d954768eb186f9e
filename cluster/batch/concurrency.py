"""How many requests of a batch are under way at a time. Pure.

One more for each round of answers, half as many when the server refuses: additive increase and
multiplicative decrease (Chiu and Jain, 1989).
"""

from __future__ import annotations

# Refusals that come within this time are one: they were asked at the same pace.
_ONE_REFUSAL_S = 1.0
_FIRST = 4.0


class BatchConcurrency:
    """Between 1 and `most` at a time."""

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self._limit = min(_FIRST, self._most)
        self._slowed_s = float("-inf")

    @property
    def limit(self) -> int:
        """How many may be under way now, those that wait to come back among them."""
        return int(self._limit)

    def answered(self) -> None:
        """The server took a request and answered it."""
        self._limit = min(self._most, self._limit + 1 / self._limit)

    def refused(self, now: float) -> None:
        """The server had no room."""
        if now - self._slowed_s >= _ONE_REFUSAL_S:
            self._limit = max(1.0, self._limit / 2)
            self._slowed_s = now
