"""One connection to Redis for scripts that are called often, where each microsecond counts.

A call takes less than half of the time that it takes in the client, which spends most of it on its
pool, its stream and its parser. Only what a script needs is here. A connection that failed, or
whose caller gave up, is closed, and the next call opens another one.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from protos.wire.tls import Reloading

Word = bytes | str | int
_END = b"\r\n"


class RedisRefusal(OSError):
    """Redis answered a command with this error."""


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Where a Redis is: the path of a Unix socket, or a host and port; and how to enter it."""

    path: str | None = None
    host: str = ""
    port: int = 0
    db: int = 0
    login: tuple[str, ...] = field(default=(), repr=False)
    contexts: Reloading[ssl.SSLContext] | None = None


class RedisScript:
    """Calls one script, without keys. A call in parallel to another one follows it."""

    def __init__(self, address: RedisAddress, script: str) -> None:
        self._address = address
        self._script = script.encode()
        self._sha = hashlib.sha1(self._script, usedforsecurity=False).hexdigest()
        self._connection: _RedisConnection | None = None
        self._opening = asyncio.Lock()

    async def call(self, args: Sequence[Word]) -> bytes:
        """The text with which the script answers. Raises OSError."""
        connection = self._connection
        if connection is None or connection.closed:
            connection = await self._open()
        try:
            try:
                return await connection.call(("EVALSHA", self._sha, 0, *args))
            except RedisRefusal as refusal:
                if not str(refusal).startswith("NOSCRIPT"):
                    raise
                return await connection.call(("EVAL", self._script, 0, *args))
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    async def _open(self) -> _RedisConnection:
        async with self._opening:
            if self._connection is not None and not self._connection.closed:
                return self._connection
            connection = await _connected(self._address)
            try:
                if self._address.login:
                    await connection.call(("AUTH", *self._address.login))
                if self._address.db:
                    await connection.call(("SELECT", self._address.db))
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            return connection


class _RedisConnection(asyncio.Protocol):
    """Sends commands, and gives the answers, in order."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._received = b""
        self._loop = asyncio.get_running_loop()

    @property
    def closed(self) -> bool:
        """Whether it takes no more commands."""
        return self._transport is None or self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's are of no class of asyncio.
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the calls that have no answer."""
        self._transport = None
        while self._waiting:
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(ConnectionResetError("the connection was lost"))

    def data_received(self, data: bytes) -> None:
        """Take answers: `$LENGTH`, a text; `+` or `:`, a line; `-`, an error."""
        self._received += data
        while (line_end := self._received.find(_END)) >= 0:
            kind, line = self._received[:1], self._received[1:line_end]
            end = line_end + 2
            if kind == b"$":
                if not line.isdigit():
                    raise ValueError("Redis answered without a text")
                begin, end = end, end + int(line) + 2
                if len(self._received) < end:
                    return
                line = self._received[begin : end - 2]
            self._received = self._received[end:]
            answer = self._waiting.popleft()
            if answer.done():
                continue
            if kind == b"-":
                answer.set_exception(RedisRefusal(line.decode(errors="replace")))
            else:
                answer.set_result(line)

    async def call(self, words: Sequence[Word]) -> bytes:
        """Send a command, and wait for its answer."""
        if self._transport is None:
            raise ConnectionResetError("the connection was lost")
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            text = word if isinstance(word, bytes) else str(word).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(text), text))
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting.append(answer)
        self._transport.write(b"".join(parts))
        return await answer

    def close(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()


async def _connected(address: RedisAddress) -> _RedisConnection:
    loop = asyncio.get_running_loop()
    if address.path is not None:
        _, connection = await loop.create_unix_connection(_RedisConnection, address.path)
        return connection
    context = None if address.contexts is None else address.contexts.get()
    _, connection = await loop.create_connection(
        _RedisConnection, address.host, address.port, ssl=context
    )
    return connection
