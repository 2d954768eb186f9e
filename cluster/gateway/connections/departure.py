"""Finds out whether a client that sends nothing more still waits for its answer.

The end of what a client sends looks the same from a client that has closed its connection, and from
a client that only closed its own side (RFC 9112, 9.6). The system of a client that has gone answers
what is written with a reset. So interim answers are written, which clients ignore.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"
# Tuned: many answers come before the first; a reset takes a round trip.
_FIRST_S, _LONGEST_S = 0.05, 5.0


class DepartureProbe:
    """Writes an interim answer after 0.05 s, 0.1 s, 0.2 s and so on, while no answer has begun."""

    def __init__(self, loop: asyncio.AbstractEventLoop, unanswered: Callable[[], bool]) -> None:
        self._loop = loop
        self._unanswered = unanswered
        self._handle: asyncio.TimerHandle | None = None

    def start(self, transport: asyncio.WriteTransport, delay_s: float = _FIRST_S) -> None:
        """Write to `transport` after `delay_s`, and so on."""

        def write() -> None:
            if self._unanswered() and not transport.is_closing():
                transport.write(INTERIM)
                self.start(transport, min(_LONGEST_S, 2 * delay_s))

        self._handle = self._loop.call_later(delay_s, write)

    def stop(self) -> None:
        """Write nothing more. Idempotent."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
