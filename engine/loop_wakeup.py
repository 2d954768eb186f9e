"""What a loop waits for when it has nothing to do, and who waits for a loop's step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

# What no step takes.
_STEP_S = 30.0


class LoopWakeup:
    """An event with neighbours: loops over one pool of blocks wake each other."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._pulse = asyncio.Event()
        self._neighbours: list[LoopWakeup] = []

    def join(self, other: LoopWakeup) -> None:
        """From now on either wakes both."""
        self._neighbours.append(other)
        other._neighbours.append(self)

    def set(self) -> None:
        """Something came, or blocks were freed."""
        for wake in (self, *self._neighbours):
            wake._event.set()
            wake._pulse.set()
            wake._pulse.clear()

    def clear(self) -> None:
        """Before looking whether there is something to do."""
        self._event.clear()

    @property
    def pending(self) -> bool:
        """Whether something came since `clear`; any thread may ask."""
        return self._event.is_set()

    async def wait(self, most_s: float | None = None) -> None:
        """Until something came since `clear`, or for so long; None: however long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self._event.wait()

    async def stirred(self, most_s: float) -> None:
        """For those beside the loop: until something comes after this call, or for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self._pulse.wait()


class StepEnds:
    """Where those wait whose blocks a step may still write to, though they were released.

    `leaving(owner)` says whether one does.
    """

    def __init__(self, leaving: Callable[[str], bool]) -> None:
        self._leaving = leaving
        self._ended = asyncio.Event()

    def tell(self) -> None:
        """A step has ended; the next wait is for the next one."""
        self._ended.set()
        self._ended.clear()

    async def vacated(self, owner: str) -> None:
        """Wait until no step writes to its blocks, unless it takes longer than any should."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_STEP_S):
                while self._leaving(owner):
                    await self._ended.wait()
