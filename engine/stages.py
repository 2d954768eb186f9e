"""How long each stage of a start took."""

from __future__ import annotations

import time


class Stages:
    """A clock that is read at the end of each stage."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()
        self._took: list[str] = []

    def ended(self, name: str) -> None:
        """The stage that began where the last one ended."""
        now = time.monotonic()
        self._took.append(f"{name} {now - self._last_s:.1f} s")
        self._last_s = now

    def __str__(self) -> str:
        return ", ".join(self._took)
