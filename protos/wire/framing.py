"""A proved connection: messages in frames, and signs of life.

A frame is its length in four bytes, big end first, and the message. An empty message says that its
sender lives. A peer that is silent for several ticks is cut off, because a frozen or unreachable
peer breaks no connection by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from engine.errors import Internal

MOST_BYTES = 64 << 20
# Counted in ticks of this process's loop, so that its own stalls are not taken for silence.
TICK_S = 5.0
SILENT_TICKS = 3
_LENGTH = 4
_ALIVE = bytes(_LENGTH)


class Wire(asyncio.Protocol):
    """One end of a connection. `took` gets each message, `lost` once why the connection ended.

    Both are called from the event loop and must not wait. `opened` is called before either. A
    message has at most `most_bytes`. An end writes something every `tick_s` at least, and ends a
    connection by which nothing came in `silent_ticks` of these.
    """

    def __init__(
        self,
        took: Callable[[bytes], None],
        lost: Callable[[str], None],
        opened: Callable[[], None] = lambda: None,
        tick_s: float = TICK_S,
        most_bytes: int = MOST_BYTES,
        silent_ticks: int = SILENT_TICKS,
    ) -> None:
        self._took = took
        self._lost = lost
        self._opened = opened
        self._tick_s = tick_s
        self._silent_ticks = silent_ticks
        self._most_bytes = most_bytes
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._ended = False
        self._leaving: asyncio.TimerHandle | None = None
        self._reason = "the connection ended"
        self._writable = asyncio.Event()
        self._writable.set()
        self._reading = True
        self._wrote = False
        self._silent = 0
        self._heard = False
        self._ticking: asyncio.TimerHandle | None = None

    def send(self, message: bytes) -> None:
        """Send a message, which is not empty; nothing happens where the connection has ended."""
        if not message:
            raise Internal("an empty message is a sign of life, and carries nothing")
        if self._transport is not None and not self._ended and self._leaving is None:
            self._wrote = True
            self._transport.write(len(message).to_bytes(_LENGTH, "big") + message)

    @property
    def unsent(self) -> int:
        """Bytes of messages that the system has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def heard(self) -> bool:
        """Whether anything came since the last time; a side that reads nothing cannot tell."""
        heard, self._heard = self._heard or not self._reading, False
        return heard

    async def drained(self) -> None:
        """Wait until the other side has taken enough of what was sent."""
        await self._writable.wait()

    def pause(self) -> None:
        """Take no more messages for now; some may still come."""
        if self._transport is not None and self._reading and not self._ended:
            self._reading = False
            self._transport.pause_reading()

    def resume(self) -> None:
        """Take messages again."""
        if self._transport is not None and not self._reading and not self._ended:
            self._reading = True
            self._transport.resume_reading()

    def leave(self, reason: str, linger_s: float) -> None:
        """Let the other side read what was sent and hang up, at most for `linger_s`.

        Its own messages are thrown away meanwhile. Idempotent.
        """
        if self._transport is None:
            self.close(reason)
        elif not self._ended and self._leaving is None:
            self.resume()
            loop = asyncio.get_running_loop()
            self._leaving = loop.call_later(linger_s, self.close, reason)

    def close(self, reason: str = "the connection was closed") -> None:
        """End the connection at once; `lost` is called soon. Idempotent."""
        if not self._ended:
            self._ended, self._reason = True, reason
            if self._transport is not None:
                self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)
        if self._ended:
            self._transport.abort()
            return
        self._tick_later()
        self._opened()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        if exc is not None and not self._ended:
            self._reason = f"the connection broke: {exc}"
        self._ended = True
        for timer in (self._ticking, self._leaving):
            if timer is not None:
                timer.cancel()
        self._buffer.clear()
        self._writable.set()
        self._lost(self._reason)

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._silent = 0
        self._heard = True
        if self._leaving is not None or self._ended:
            return
        self._buffer += data
        begin, size = 0, len(self._buffer)
        while size - begin >= _LENGTH and not self._ended:
            length = int.from_bytes(self._buffer[begin : begin + _LENGTH], "big")
            if length > self._most_bytes:
                most = self._most_bytes
                self.close(f"a message of {length} bytes came, and {most} are the most")
                return
            stop = begin + _LENGTH + length
            if stop > size:
                break
            if length:
                self._took(bytes(self._buffer[begin + _LENGTH : stop]))
            begin = stop
        del self._buffer[:begin]

    def _tick_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._ticking = loop.call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        if self._ended or self._transport is None:
            return
        if not self._wrote:
            self._transport.write(_ALIVE)
        self._wrote = False
        # While this side reads nothing, the other side is not silent.
        self._silent += self._reading
        if self._silent >= self._silent_ticks:
            self.close(f"nothing was heard for {self._silent_ticks * self._tick_s:g} s")
        else:
            self._tick_later()
