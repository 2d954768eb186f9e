"""How the clocks of two routers differ. Each router tells the times of its rows by its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Numerics: two clocks drift apart by so much of the time at most (RFC 5905 assumes 15e-6 of each).
DRIFT = 30e-6


@dataclass(frozen=True, slots=True)
class ClockDifference:
    """The clock of another router is ahead by `ahead_s`, which may be wrong by `error_s`."""

    ahead_s: float = 0.0
    error_s: float = 0.0

    @classmethod
    def of(
        cls, sent_at: float, asked_at: float, answered_at: float, came_at: float
    ) -> ClockDifference | None:
        """From one question: sent and answered here, and in between on the other router's clock.

        The error is half of the time on the way, as in NTP (RFC 5905). None where the other router
        tells no time.
        """
        there_s, way_s = answered_at - asked_at, came_at - sent_at
        ahead_s = (asked_at - sent_at + answered_at - came_at) / 2
        if not asked_at or not math.isfinite(ahead_s) or not 0 <= there_s <= way_s + DRIFT:
            return None
        return cls(ahead_s, max(0.0, way_s - there_s) / 2)

    def error_at(self, age_s: float) -> float:
        """The error for a time so many seconds ago, as the clocks may have drifted since."""
        return self.error_s + DRIFT * max(0.0, age_s)


SAME_CLOCK = ClockDifference()
