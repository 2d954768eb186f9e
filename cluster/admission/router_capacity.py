"""Predicts when a full router will have capacity again, from how long requests stay in it. Pure.

The requests that end in a second are the running ones over the seconds that a request stays
(Little, 1961). Each refused request is told a time behind the times that were told before, so that
they do not all return at once.
"""

from __future__ import annotations

from cluster.admission.retry_schedule import SOONEST_S

# Numerics: weight of the newest stay in the mean.
_SMOOTHING = 0.1
# Start value: the wait that is told before a request has ended.
_UNKNOWN_S = 1.0


class RouterCapacity:
    """Learns how long requests stay, and predicts when there is capacity for another."""

    def __init__(self) -> None:
        self._stay_s: float | None = None
        self._told_s = 0.0  # when there is capacity for all requests that were told to come

    def ended(self, stayed_s: float) -> None:
        """Note that a request ended `stayed_s` after it arrived."""
        known = stayed_s if self._stay_s is None else self._stay_s
        self._stay_s = known + _SMOOTHING * (stayed_s - known)

    def wait_s(self, choices: int, running: int, now: float, beyond: int = 0) -> float:
        """Seconds until enough of the `running` choices have ended for a request with `choices`.

        `beyond` more must end first, because the request's lane may fill less of the router. The
        result is at most about what one request stays: not all requests that were told return.
        """
        if self._stay_s is None:
            return _UNKNOWN_S
        each_s = self._stay_s / max(running, 1)
        ahead_s = max(0.0, self._told_s - now) + choices * each_s
        self._told_s = now + min(ahead_s, max(SOONEST_S, self._stay_s))
        return max(SOONEST_S, min(ahead_s + beyond * each_s, self._stay_s))
