"""Figures from timestamps. Pure."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# One stream: the time of each arrival (seconds), and its number of tokens.
Stream = Sequence[tuple[float, int]]

_DRAWS = 2000


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
        """The median value."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The smallest value."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest value."""
        return max(self.values)

    def show(self, digits: int = 0) -> str:
        """The median as text, with the range if there are several values."""
        if len(self.values) == 1:
            return f"{self.median:,.{digits}f}"
        return f"{self.median:,.{digits}f} [{self.low:,.{digits}f} to {self.high:,.{digits}f}]"


def percentile(values: Sequence[float], share: float) -> float:
    """A percentile of one value at least, interpolated; `share` is from 0 to 1."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def steady_rate(streams: Sequence[Stream]) -> float:
    """Tokens per second while all streams run.

    The time is from the first token of the last stream to the end of the first stream. The rate is
    the number of tokens that arrived in that time, over the time. Raises NoOverlap.
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
    """Our speed over theirs, round by round."""
    pairs = zip(ours, theirs, strict=False)
    return Spread(tuple(mine.median / other.median for mine, other in pairs))


def pooled(rounds: Sequence[Spread]) -> Spread:
    """All measurements of all rounds."""
    return Spread(tuple(value for spread in rounds for value in spread.values))


def between(values: Sequence[float]) -> tuple[float, float]:
    """The bounds of 95 % of the medians of values resampled with replacement."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(_DRAWS))
    return medians[_DRAWS // 40], medians[-_DRAWS // 40]
