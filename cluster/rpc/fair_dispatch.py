"""Fair dispatch: callbacks that can wait run one for each pass of the event loop.

Urgent work runs in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class FairDispatcher:
    """Calls the functions that it is given in order, one for each pass of the loop."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._loop = asyncio.get_running_loop()

    def add(self, callback: Callable[[], None]) -> None:
        """Call the function after those that were added before."""
        self._waiting.append(callback)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        callback = self._waiting.popleft()
        if self._waiting:
            self._loop.call_soon(self._next)
        callback()
