"""Measures the stages of a start."""

from __future__ import annotations

import time


class StartupTimer:
    """Times the stages of a start; `took` has the seconds of each stage, in order."""

    def __init__(self) -> None:
        self.took: dict[str, float] = {}
        self._last_s = time.monotonic()

    def ended(self, name: str) -> None:
        """End the stage of that name, which began when the stage before ended."""
        now = time.monotonic()
        self.took[name] = now - self._last_s
        self._last_s = now

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
