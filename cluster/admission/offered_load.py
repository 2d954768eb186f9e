"""How much computing comes in, against what can be done. Pure."""

from __future__ import annotations

import math
from itertools import accumulate

# Over how long arrivals count at least and at most; the load from which, and down to which, there
# is pressure.
_MEMORY_S = 2.0
_LONGEST_S = 32.0
_PRESSED = 1.5
_RELIEVED = 1.0


class OfferedLoad:
    """Work that came lately, in seconds of what the replicas can do together for each second.

    It counts for about 2 s, or for its budget where that is longer, 32 s at most, and as much less
    at any moment. So four long prompts at once are no pressure where they have time enough; a
    burst of chats is, from its first second to about its end.
    """

    def __init__(self) -> None:
        self._work_s: dict[float, float] = {}  # by how long it counts; as it was at `at_s`
        self._at_s = 0.0
        self._pressed = False

    def add(self, work_s: float, now: float, budget_s: float) -> None:
        """Something came that takes all replicas so long, and has so long for its first token."""
        self._work_s = {memory_s: self._left(memory_s, now) for memory_s in self._work_s}
        self._at_s = now
        memory_s = max(_MEMORY_S, min(budget_s, _LONGEST_S))
        self._work_s[memory_s] = self._work_s.get(memory_s, 0.0) + work_s

    def load(self, now: float) -> float:
        """1 is as much as can be done.

        For each time for which something counts: what is left of all that counts for no longer,
        over that time; the greatest of these. So work that has more time never adds to the load of
        work that has less. Kinds that are too much only together may stay below; requests that
        then find no room wait in the router, which counts as pressure as well.
        """
        memories = sorted(self._work_s)
        left = accumulate(self._left(memory_s, now) for memory_s in memories)
        each = zip(left, memories, strict=True)
        return max((work_s / memory_s for work_s, memory_s in each), default=0.0)

    def pressed(self, now: float) -> bool:
        """Whether more comes than can be done; with hysteresis."""
        self._pressed = self.load(now) > (_RELIEVED if self._pressed else _PRESSED)
        return self._pressed

    def _left(self, memory_s: float, now: float) -> float:
        return self._work_s[memory_s] * math.exp(min(0.0, self._at_s - now) / memory_s)
