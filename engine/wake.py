"""What a loop waits for when it has nothing to do."""

from __future__ import annotations

import asyncio


class Wake:
    """An event with neighbours: loops over one pool of blocks wake each other."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._neighbours: list[Wake] = []

    def join(self, other: Wake) -> None:
        """From now on either wakes both."""
        self._neighbours.append(other)
        other._neighbours.append(self)

    def set(self) -> None:
        """Something came, or blocks were freed."""
        self._event.set()
        for neighbour in self._neighbours:
            neighbour._event.set()

    def clear(self) -> None:
        """Before looking whether there is something to do."""
        self._event.clear()

    async def wait(self) -> None:
        """Until something came since `clear`."""
        await self._event.wait()
