"""A deadline for what a client does, such as to send its headers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ClientTimer:
    """Calls `late` once it has run for `seconds`, unless it is stopped before. It can run again."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, late: Callable[[], object]
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._late = late
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin. A timer that runs goes on as it is."""
        if self._handle is None:
            self._handle = self._loop.call_later(self._seconds, self._end)

    def stop(self) -> None:
        """End without a call. Idempotent."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _end(self) -> None:
        self._handle = None
        self._late()
