"""Whether the event loop of a router stood still lately: then the router answered nobody."""

from __future__ import annotations

import asyncio
import math
import time

_TICK_S = 0.1
# Bound: a loop that stands still for less is busy, and no client takes that for an end.
LATE_S = 5.0
# Bound: how long the router is unhealthy after that.
HOLD_S = 10.0


class LoopLag:
    """Measures the event loop in which `run` runs. Times are seconds of any one clock."""

    def __init__(self) -> None:
        self._late_until_s = -math.inf

    def note(self, lag_s: float, now: float) -> None:
        """Note that the loop came so late to a timer."""
        if lag_s > LATE_S:
            self._late_until_s = now + HOLD_S

    def late(self, now: float) -> bool:
        """Whether the loop stood still, now or a short time ago."""
        return now < self._late_until_s

    async def run(self) -> None:
        """Measure until it is cancelled."""
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            self.note(now - began_s - _TICK_S, now)
