"""Events that wake loops, and that tell requests of the end of a step."""

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
        """Connect two wakeups: from now on each sets both."""
        self._neighbours.append(other)
        other._neighbours.append(self)

    def set(self) -> None:
        """Wake the loop: a request came, or blocks were freed."""
        for wakeup in (self, *self._neighbours):
            wakeup._event.set()
            wakeup._pulse.set()
            wakeup._pulse.clear()

    def clear(self) -> None:
        """Clear the event; called before the loop searches for work."""
        self._event.clear()

    @property
    def pending(self) -> bool:
        """Whether the event was set since `clear`; any thread may call this."""
        return self._event.is_set()

    async def wait(self, most_s: float | None = None) -> None:
        """Wait until the event is set, at most `most_s` seconds (None: no limit)."""
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self._event.wait()

    async def stirred(self, most_s: float) -> None:
        """Wait beside the loop until the event is set anew, at most `most_s` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self._pulse.wait()


class PassEnds:
    """Counts the passes over prompts that have ended, for all that follow a replica's load."""

    def __init__(self) -> None:
        self.count = 0
        self._ended = asyncio.Event()

    def tell(self) -> None:
        """Count the end of a pass."""
        self.count += 1
        self._ended.set()
        self._ended.clear()

    async def beyond(self, count: int, most_s: float) -> None:
        """Wait until more passes than `count` have ended, at most `most_s` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                while self.count <= count:
                    await self._ended.wait()


class StepEnds:
    """Lets released requests wait until no step writes to their blocks.

    `leaving(owner)` says whether a step still does.
    """

    def __init__(self, leaving: Callable[[str], bool]) -> None:
        self._leaving = leaving
        self._ended = asyncio.Event()

    def tell(self) -> None:
        """Tell the waiting requests that a step has ended."""
        self._ended.set()
        self._ended.clear()

    async def vacated(self, owner: str) -> None:
        """Wait until no step writes to the owner's blocks, at most 30 seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_STEP_S):
                while self._leaving(owner):
                    await self._ended.wait()
