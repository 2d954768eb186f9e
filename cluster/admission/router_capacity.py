"""When a full router will have room again, by how long requests stay in it. Pure.

So many of them end in each second as there are, over the time that one stays (Little, 1961). Each
that is refused is told a time behind those that were told one before, so that not all come at once.
"""

from __future__ import annotations

_SMOOTHING = 0.1
# Before any has ended, and the least that is worth coming back after.
_UNKNOWN_S = 1.0
_SOONEST_S = 0.05


class RouterCapacity:
    """Learns how long requests stay, and says when there will be room for another."""

    def __init__(self) -> None:
        self._stay_s: float | None = None
        self._told_s = 0.0  # by when there is room for all that were told to come

    def ended(self, stayed_s: float) -> None:
        """A request has ended, that long after it came."""
        known = stayed_s if self._stay_s is None else self._stay_s
        self._stay_s = known + _SMOOTHING * (stayed_s - known)

    def wait_s(self, choices: int, running: int, now: float, beyond: int = 0) -> float:
        """Seconds until so many of the `running` choices will have made room for a request.

        So many `beyond` these must end before for its lane, whoever else comes. At most about what
        one stays: of those told before, not all come back.
        """
        if self._stay_s is None:
            return _UNKNOWN_S
        each_s = self._stay_s / max(running, 1)
        ahead_s = max(0.0, self._told_s - now) + choices * each_s
        self._told_s = now + min(ahead_s, max(_SOONEST_S, self._stay_s))
        return max(_SOONEST_S, min(ahead_s + beyond * each_s, self._stay_s))
