"""What can wait, one piece at a turn of the event loop, so that what cannot comes in between."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class FairDispatcher:
    """Calls what it is given in order, one at each turn of the loop."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._loop = asyncio.get_running_loop()

    def add(self, one: Callable[[], None]) -> None:
        """Call it after those before it."""
        self._waiting.append(one)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        one = self._waiting.popleft()
        if self._waiting:
            self._loop.call_soon(self._next)
        one()
