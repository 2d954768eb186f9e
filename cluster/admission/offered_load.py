"""Measures how much computing arrives, against what the replicas can do. Pure."""

from __future__ import annotations

import math
from itertools import accumulate

# Tuned to tell a burst of chats from a few long prompts: how long an arrival counts, at the least
# and at the most, and the load from which, and down to which, the replicas are overloaded.
_MEMORY_S = 2.0
_LONGEST_S = 32.0
_OVERLOADED = 1.5
_RELIEVED = 1.0


class OfferedLoad:
    """Work that arrived lately, in seconds of all replicas together for each second.

    Work counts for about 2 s, or for its TTFT budget if that is longer, at most for 32 s, and fades
    all the time. So four long prompts at once are no overload where they have time enough. A burst
    of chats is one, from its first second to about its end. Where no prompt is computed beside
    streams, nothing follows from it.
    """

    def __init__(self) -> None:
        self._work_s: dict[float, float] = {}  # by how long it counts; as it was at `at_s`
        self._at_s = 0.0
        self._overloaded = False

    def add(self, work_s: float, now: float, budget_s: float) -> None:
        """Note `work_s` of all replicas, of a request with `budget_s` for its first token."""
        self._work_s = {memory_s: self._left(memory_s, now) for memory_s in self._work_s}
        self._at_s = now
        memory_s = max(_MEMORY_S, min(budget_s, _LONGEST_S))
        self._work_s[memory_s] = self._work_s.get(memory_s, 0.0) + work_s

    def load(self, now: float) -> float:
        """The offered load; 1 is as much as the replicas can do.

        For each memory the load is what is left of all work with that memory or a shorter one, over
        that memory. The result is the greatest of these loads. So work that has more time never
        adds to the load of work that has less. Kinds of work that are too much only together may
        stay below 1. Requests that then find no capacity wait in the router, which counts as well.
        """
        memories = sorted(self._work_s)
        left = accumulate(self._left(memory_s, now) for memory_s in memories)
        each = zip(left, memories, strict=True)
        return max((work_s / memory_s for work_s, memory_s in each), default=0.0)

    def overloaded(self, now: float) -> bool:
        """Whether more work arrives than can be done, with hysteresis."""
        self._overloaded = self.load(now) > (_RELIEVED if self._overloaded else _OVERLOADED)
        return self._overloaded

    def _left(self, memory_s: float, now: float) -> float:
        return self._work_s[memory_s] * math.exp(min(0.0, self._at_s - now) / memory_s)
