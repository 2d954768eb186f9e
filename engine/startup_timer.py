"""How long each stage of a start took."""

from __future__ import annotations

import time


class StartupTimer:
    """A clock that is read at the end of each stage; `took` has the seconds of each, in order."""

    def __init__(self) -> None:
        self.took: dict[str, float] = {}
        self._last_s = time.monotonic()

    def ended(self, name: str) -> None:
        """The stage that began where the last one ended."""
        now = time.monotonic()
        self.took[name] = now - self._last_s
        self._last_s = now

    @property
    def total_s(self) -> float:
        """All stages together."""
        return sum(self.took.values())

    @property
    def longest(self) -> str:
        """The stage that took most."""
        return max(self.took, key=self.took.__getitem__)

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.took.items())
