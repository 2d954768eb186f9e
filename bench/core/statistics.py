"""Figures from timestamps. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# One stream: when something arrived (seconds), and how many tokens it brought.
Stream = Sequence[tuple[float, int]]


class NoOverlap(ValueError):
    """The streams never ran all at once, so there is no steady state to measure."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Repeated measurements of one thing."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("no measurement")

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The smallest."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest."""
        return max(self.values)

    def show(self, digits: int = 0) -> str:
        """Median, and the range where there is more than one value."""
        if len(self.values) == 1:
            return f"{self.median:,.{digits}f}"
        return f"{self.median:,.{digits}f} [{self.low:,.{digits}f} to {self.high:,.{digits}f}]"


def steady_rate(streams: Sequence[Stream]) -> float:
    """Tokens per second while all streams run.

    From the moment the last of them has its first token to the moment the first of them ends; what
    arrived in between, over that time. Raises NoOverlap.
    """
    if not streams or not all(streams):
        raise NoOverlap("a stream brought no token")
    begin = max(stream[0][0] for stream in streams)
    end = min(stream[-1][0] for stream in streams)
    if end <= begin:
        raise NoOverlap(f"the first stream ended {begin - end:.2f} s before the last one began")
    tokens = sum(count for stream in streams for time, count in stream if begin < time <= end)
    return tokens / (end - begin)


def ratio(ours: Sequence[Spread], theirs: Sequence[Spread]) -> Spread:
    """How many times as fast as they we are, round by round, as both stood side by side."""
    pairs = zip(ours, theirs, strict=False)
    return Spread(tuple(mine.median / other.median for mine, other in pairs))


def pooled(rounds: Sequence[Spread]) -> Spread:
    """All measurements of all rounds."""
    return Spread(tuple(value for spread in rounds for value in spread.values))
