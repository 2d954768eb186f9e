"""The ITL of one stream: the times between its events with tokens. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import sub
from typing import Self

# Bound: times whose quantiles are taken; of more, an even part.
_SAMPLES = 4096


@dataclass(frozen=True, slots=True)
class StreamItl:
    """Quantiles of the ITL, and the longest one, in seconds; None below two events."""

    p50_s: float | None = None
    p95_s: float | None = None
    longest_s: float | None = None

    @classmethod
    def of(cls, came_s: Sequence[float]) -> Self:
        """The ITL of events that came at these times, in order."""
        found = list(map(sub, came_s[1:], came_s))
        if not found:
            return cls()
        every = 1 + (len(found) - 1) // _SAMPLES
        ranked = sorted(found[::every])
        return cls(rank(ranked, 0.5), rank(ranked, 0.95), max(found))


def rank(ranked: Sequence[float], share: float) -> float:
    """The value behind so large a share of others, which are in ascending order; at least one."""
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]
