"""A proved connection as a stream: messages are read and written one after the other."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from engine.errors import Unavailable
from protos.wire.framing import TICK_S, Wire

log = logging.getLogger(__name__)

# Bounds: what may wait to be read before the stream takes no more from the system. What has
# arrived with the last message still comes.
_MOST_WAITING = 256
_MOST_WAITING_BYTES = 1 << 20
# Bound: how long a peer may take to read the last messages and hang up.
_LINGER_S = 1.0
# Bound: the streams of one purpose at a time.
_MOST_STREAMS = 1024


class FrameStream:
    """Both directions of a connection; `wire` is the protocol to give a connection to.

    A message has at most `most_bytes`.
    """

    def __init__(self, most_bytes: int, tick_s: float = TICK_S) -> None:
        self.wire = Wire(self._took, self._lost, tick_s=tick_s, most_bytes=most_bytes)
        self._messages: deque[bytes] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._reason: str | None = None

    async def read(self) -> bytes:
        """The next message. Raises Unavailable with the reason once the connection has ended."""
        while not self._messages:
            if self._reason is not None:
                raise Unavailable(self._reason)
            self._changed.clear()
            await self._changed.wait()
        message = self._messages.popleft()
        self._bytes -= len(message)
        if not self._messages:
            self.wire.resume()
        return message

    async def write(self, message: bytes) -> None:
        """Send a message, and wait while the peer takes nothing. Raises Unavailable as `read`."""
        self.wire.send(message)
        await self.wire.drained()
        if self._reason is not None:
            raise Unavailable(self._reason)

    def leave(self, reason: str) -> None:
        """Let the peer read what was sent and hang up, for 1 s at most."""
        self.wire.leave(reason, _LINGER_S)

    def close(self, reason: str = "the connection was closed") -> None:
        """End the connection at once. Idempotent."""
        self.wire.close(reason)

    async def ended(self) -> str:
        """Wait until the connection has ended, whatever arrives; returns the reason."""
        while self._reason is None:
            self._changed.clear()
            await self._changed.wait()
        return self._reason

    def _took(self, message: bytes) -> None:
        self._messages.append(message)
        self._bytes += len(message)
        self._changed.set()
        if len(self._messages) >= _MOST_WAITING or self._bytes >= _MOST_WAITING_BYTES:
            self.wire.pause()

    def _lost(self, reason: str) -> None:
        self._reason = reason
        self._changed.set()


class StreamServer:
    """Serves the streams of one purpose, each with a task of `serve`, and closes them behind it."""

    def __init__(self, serve: Callable[[FrameStream], Awaitable[None]], most_bytes: int) -> None:
        self._serve = serve
        self._most_bytes = most_bytes
        self._tasks: set[asyncio.Task[None]] = set()

    def accept(self) -> Wire | None:
        """The protocol of a new connection; None at the bound."""
        if len(self._tasks) >= _MOST_STREAMS:
            return None
        stream = FrameStream(self._most_bytes)
        task = asyncio.create_task(self._run(stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return stream.wire

    async def stop(self) -> None:
        """End all streams. Idempotent."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, stream: FrameStream) -> None:
        try:
            await self._serve(stream)
        except Unavailable as error:
            log.debug("a stream ended", extra={"reason": error.message})
            stream.close()
        except Exception:
            log.exception("a fault in a stream")
            stream.close("a fault")
        except asyncio.CancelledError:
            stream.close("the server stops")
            raise
        else:
            stream.leave("the server ended the stream")
        finally:
            await stream.ended()
