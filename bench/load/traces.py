"""Loads from recorded traces, scaled to a machine. The load's title has the scale.

A trace is a gzipped CSV with the header `arrival_s,prompt_tokens,output_tokens,prefix_blocks`; the
last field has ids joined by `;`, where an equal id stands for an equal whole prefix up to there.
"""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from bench.load.arrivals import Arrival, Load

PHASE = "trace"


@dataclass(frozen=True, slots=True)
class TraceScale:
    """The part of a trace that is played, and its scale.

    From `start_s` of the trace on, for `seconds` of our time; time runs `speed` times as fast;
    lengths are divided by `shrink` and cut to `most_tokens`; a request stays with probability
    `share`. `spread_s` (of the trace) draws each arrival from as long after its recorded moment,
    for traces whose clock is coarse. `block_tokens` is the size of a prefix block in the source.
    """

    start_s: float = 0.0
    seconds: float = 60.0
    speed: float = 1.0
    shrink: float = 1.0
    share: float = 1.0
    spread_s: float = 0.0
    most_tokens: int = 2048
    block_tokens: int = 0

    def __post_init__(self) -> None:
        positive = (self.seconds, self.speed, self.shrink, self.share, self.most_tokens)
        if min(positive) <= 0 or self.share > 1 or min(self.start_s, self.spread_s) < 0:
            raise ValueError("a trace's scale must be positive, and its share at most 1")

    def smaller(self, by: float) -> TraceScale:
        """The scale with all lengths divided by `by`, also the greatest length."""
        return replace(self, shrink=self.shrink * by, most_tokens=round(self.most_tokens / by))

    def slower(self, by: float) -> TraceScale:
        """The scale with the speed divided by `by`, for the same part of the trace."""
        return replace(self, seconds=self.seconds * by, speed=self.speed / by)

    def words(self) -> str:
        """The scale in words, to stand beside every figure."""
        end_s = self.start_s + self.seconds * self.speed
        parts = [f"from {self.start_s:g} to {end_s:g} s", f"at {self.speed:g} times its speed"]
        parts.append(f"lengths divided by {self.shrink:g}, at most {self.most_tokens} tokens")
        if self.share < 1:
            parts.append(f"each request kept with probability {self.share:g}")
        if self.spread_s:
            parts.append(f"arrivals spread over {self.spread_s:g} s of the trace")
        return ", ".join(parts)


# For two cores and the 135 M shape: half of their capacity on average, and all of it at times.
FITTED = {
    "azure2023_conv": TraceScale(start_s=600, speed=0.5, shrink=4, most_tokens=1024),
    "servegen_mlarge_steps": TraceScale(
        seconds=90, speed=80, shrink=2, share=1 / 300, most_tokens=1024
    ),
    "mooncake_conversation": TraceScale(
        start_s=600, speed=0.4, shrink=16, spread_s=3, most_tokens=2048, block_tokens=512
    ),
}


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[str, ...]


def read_rows(path: Path) -> Iterator[TraceRow]:
    """The rows in order; raises OSError, or ValueError for a line in another format."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", newline="") as file:
        for number, line in enumerate(csv.DictReader(file), 2):
            try:
                blocks = tuple(filter(None, (line["prefix_blocks"] or "").split(";")))
                sizes = (int(line["prompt_tokens"]), int(line["output_tokens"]))
                yield TraceRow(float(line["arrival_s"]), *sizes, blocks)
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {number}: {error!r}") from None


def load_trace(path: Path, scale: TraceScale, seed: int) -> Load:
    """A part of a trace as a load; equal seeds give equal loads. Raises OSError, ValueError."""
    chosen = random.Random(seed)
    end_s = scale.start_s + scale.seconds * scale.speed
    block_tokens = max(1, round(scale.block_tokens / scale.shrink)) if scale.block_tokens else 0
    arrivals = []
    for row in read_rows(path):
        if row.arrival_s >= end_s:
            break
        moment_s = row.arrival_s + chosen.uniform(0, scale.spread_s)
        kept = chosen.random() < scale.share
        if kept and scale.start_s <= moment_s < end_s:
            arrivals.append(_arrival(row, moment_s, scale, block_tokens))
    arrivals.sort(key=lambda arrival: arrival.at_s)
    name = path.name.partition(".")[0]
    spans = ((PHASE, 0.0, scale.seconds),)
    return Load(f"{name} {scale.words()}", seed, tuple(arrivals), spans, block_tokens)


def _arrival(row: TraceRow, moment_s: float, scale: TraceScale, block_tokens: int) -> Arrival:
    def shrunk(tokens: int) -> int:
        return min(scale.most_tokens, max(1, round(tokens / scale.shrink)))

    at_s = (moment_s - scale.start_s) / scale.speed
    blocks = row.blocks if block_tokens else ()
    return Arrival(at_s, PHASE, shrunk(row.prompt_tokens), shrunk(row.output_tokens), blocks)
