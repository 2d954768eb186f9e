"""The guard of a transfer's blocks: no copy to or from them begins once the transfer has ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from kv_transfer.aio.waits import succeed


class CopyGuard:
    """Lets copies of one transfer's blocks begin while it is open; other threads copy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = True
        self._inside = 0
        self._loop = asyncio.get_running_loop()
        self._empty: asyncio.Future[None] = self._loop.create_future()

    def copy(self, call: Callable[[], None]) -> bool:
        """Call `call`, which copies; False, without a call, if the guard is shut."""
        with self._lock:
            if not self._open:
                return False
            self._inside += 1
        try:
            call()
        finally:
            with self._lock:
                self._inside -= 1
                last = not self._open and not self._inside
            if last:
                self._loop.call_soon_threadsafe(succeed, self._empty, None)
        return True

    def shut(self) -> asyncio.Future[None]:
        """Let no further copy begin; the future is done when the copies under way have ended."""
        with self._lock:
            self._open = False
            empty = not self._inside
        if empty:
            succeed(self._empty, None)
        return self._empty
