"""Limits the requests of a batch that run at a time. Pure.

The limit rises by one for each round of answers, and halves when the server refuses: additive
increase and multiplicative decrease (Chiu and Jain, 1989).
"""

from __future__ import annotations

# Refusals within this time count once: their requests were sent at the same limit.
_ONE_REFUSAL_S = 1.0
_FIRST = 4.0


class BatchConcurrency:
    """A limit between 1 and `most`."""

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self._limit = min(_FIRST, self._most)
        self._slowed_s = float("-inf")

    @property
    def limit(self) -> int:
        """The most requests that may run now, with requests that wait to be sent again."""
        return int(self._limit)

    def answered(self) -> None:
        """The server took a request and answered it."""
        self._limit = min(self._most, self._limit + 1 / self._limit)

    def refused(self, now: float) -> None:
        """The server refused a request."""
        if now - self._slowed_s >= _ONE_REFUSAL_S:
            self._limit = max(1.0, self._limit / 2)
            self._slowed_s = now
