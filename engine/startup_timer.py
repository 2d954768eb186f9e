"""Measures the stages of a start, and how far the stage in progress is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

Unit = Literal["bytes", "steps"]


@dataclass(slots=True)
class StageProgress:
    """A stage in progress: `done` of `total` bytes or steps; a `total` of None is not known."""

    name: str
    began_s: float
    done: int = 0
    total: int | None = None
    unit: Unit = "steps"


class StartupTimer:
    """Times the stages of a start, which follow each other without a gap.

    `took` has the seconds of each ended stage, in order, and `counted` the bytes or steps of those
    that had a total. One thread at a time changes it; any thread may read `stage`.
    """

    def __init__(self, first: str | None = None) -> None:
        self.took: dict[str, float] = {}
        self.counted: dict[str, int] = {}
        self.stage: StageProgress | None = None
        if first is not None:
            self.begin(first)

    def begin(self, name: str) -> None:
        """Begin the stage of that name; it ends the stage before."""
        now = time.monotonic()
        self._end(now)
        self.stage = StageProgress(name, now)

    def end(self) -> None:
        """End the last stage."""
        self._end(time.monotonic())

    def expect(self, total: int, unit: Unit) -> None:
        """Say what the stage in progress will `advance` by in all; nothing between two stages."""
        if self.stage is not None:
            self.stage.unit = unit
            self.stage.total = total

    def advance(self, count: int) -> None:
        """Count so many bytes or steps as done; nothing between two stages."""
        if self.stage is not None:
            self.stage.done += count

    @property
    def total_s(self) -> float:
        """The seconds of all stages together."""
        return sum(self.took.values())

    @property
    def longest(self) -> str:
        """The name of the stage that took longest."""
        return max(self.took, key=self.took.__getitem__)

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.took.items())

    def _end(self, now: float) -> None:
        stage, self.stage = self.stage, None
        if stage is not None:
            self.took[stage.name] = now - stage.began_s
            if stage.total is not None:
                self.counted[stage.name] = stage.done
