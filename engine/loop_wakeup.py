"""Waiting: of a loop for work, and of requests for the end of a step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

# A bound: no step takes so long.
_STEP_S = 30.0


class LoopWakeup:
    """An event that wakes a loop, and the loops that share its pool of blocks."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._pulse = asyncio.Event()
        self._neighbours: list[LoopWakeup] = []

    def join(self, other: LoopWakeup) -> None:
        """From now on either wakeup sets both."""
        self._neighbours.append(other)
        other._neighbours.append(self)

    def set(self) -> None:
        """Say that something came, or that blocks were freed."""
        for wakeup in (self, *self._neighbours):
            wakeup._event.set()
            wakeup._pulse.set()
            wakeup._pulse.clear()

    def clear(self) -> None:
        """Forget what came; called before the loop looks for work."""
        self._event.clear()

    @property
    def pending(self) -> bool:
        """Whether something came since `clear`; any thread may ask."""
        return self._event.is_set()

    async def wait(self, most_s: float | None = None) -> None:
        """Wait until something came since `clear`, at most `most_s` seconds (None: no limit)."""
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self._event.wait()

    async def stirred(self, most_s: float) -> None:
        """Wait beside the loop until something comes after this call, at most `most_s` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self._pulse.wait()


class StepEnds:
    """Lets released requests wait until no step writes to their blocks.

    `leaving(owner)` says whether a step still does.
    """

    def __init__(self, leaving: Callable[[str], bool]) -> None:
        self._leaving = leaving
        self._ended = asyncio.Event()

    def tell(self) -> None:
        """Say that a step has ended."""
        self._ended.set()
        self._ended.clear()

    async def vacated(self, owner: str) -> None:
        """Wait until no step writes to the owner's blocks, at most 30 seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_STEP_S):
                while self._leaving(owner):
                    await self._ended.wait()
