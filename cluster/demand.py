"""How much computing comes in, against what can be done. Pure."""

from __future__ import annotations

import math

# Over how long arrivals count at least; the load from which, and down to which, there is pressure.
_MEMORY_S = 2.0
_PRESSED = 1.5
_RELIEVED = 1.0


class Demand:
    """Work that came lately, in seconds of what the replicas can do together for each second.

    What has more time for its first token counts for as long, and as much less at any moment. So
    four long prompts at once are no pressure, whatever they take, where they have that time; a
    burst is, from its first second to about its end.
    """

    def __init__(self) -> None:
        self._work_s: dict[float, float] = {}  # by how long it counts; as it was at `at_s`
        self._at_s = 0.0
        self._pressed = False

    def add(self, work_s: float, now: float, budget_s: float = 0.0) -> None:
        """Something came that takes all replicas so long, and may take its budget."""
        self._work_s = {memory_s: self._left(memory_s, now) for memory_s in self._work_s}
        self._at_s = now
        memory_s = _memory_s(budget_s)
        self._work_s[memory_s] = self._work_s.get(memory_s, 0.0) + work_s

    def load(self, now: float) -> float:
        """1 is as much as can be done."""
        return sum(self._left(memory_s, now) / memory_s for memory_s in self._work_s)

    def pressed(self, now: float) -> bool:
        """Whether more comes than can be done; with hysteresis."""
        self._pressed = self.load(now) > (_RELIEVED if self._pressed else _PRESSED)
        return self._pressed

    def _left(self, memory_s: float, now: float) -> float:
        return self._work_s[memory_s] * math.exp(min(0.0, self._at_s - now) / memory_s)


def _memory_s(budget_s: float) -> float:
    """How long work with that budget counts, in steps of two, as any request may bring its own."""
    return float(_MEMORY_S * 2 ** max(0, math.ceil(math.log2(max(budget_s, 1e-9) / _MEMORY_S))))
