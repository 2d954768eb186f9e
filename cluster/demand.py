"""How much computing comes in, against what can be done. Pure."""

from __future__ import annotations

import math

# Over how long arrivals count, and the load from which, and down to which, there is pressure.
_MEMORY_S = 2.0
_PRESSED = 1.5
_RELIEVED = 1.0


class Demand:
    """Work that came lately, in seconds of what the replicas can do together for each second.

    Four long prompts at once are no pressure; a burst is, from its first second to about its end.
    """

    def __init__(self) -> None:
        self._work_s = 0.0
        self._at_s = 0.0
        self._pressed = False

    def add(self, work_s: float, now: float) -> None:
        """Something came that takes all replicas so long."""
        self._work_s = self._left(now) + work_s
        self._at_s = now

    def load(self, now: float) -> float:
        """1 is as much as can be done."""
        return self._left(now) / _MEMORY_S

    def pressed(self, now: float) -> bool:
        """Whether more comes than can be done; with hysteresis."""
        self._pressed = self.load(now) > (_RELIEVED if self._pressed else _PRESSED)
        return self._pressed

    def _left(self, now: float) -> float:
        return self._work_s * math.exp(min(0.0, self._at_s - now) / _MEMORY_S)
