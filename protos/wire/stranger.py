"""The server's end of a connection until its peer has proved the secret.

It keeps at most one message of the handshake, and says nothing but its own proof.
"""

from __future__ import annotations

import asyncio
import socket
import ssl as tls
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from protos.wire.handshake import (
    HANDSHAKE_S,
    HELLO_BYTES,
    PROOF_BYTES,
    Purpose,
    Transcript,
    may_become_hello,
    new_nonce,
    read_hello,
)
from protos.wire.refusals import Reason
from protos.wire.secret import ClusterSecret


@dataclass(frozen=True, slots=True)
class ServerSide:
    """The server's part in a handshake. `left` is called once for each stranger.

    It gets the peer's address, and the reason if the stranger was refused.
    """

    secret: ClusterSecret
    address: str
    ssl: Callable[[], tls.SSLContext] | None
    left: Callable[[Stranger, str, Reason | None], None]


class Stranger(asyncio.Protocol):
    """A connection without a proof. `proved` makes the protocol that takes it over."""

    def __init__(
        self, server: ServerSide, proved: Callable[[Purpose], asyncio.Protocol | None]
    ) -> None:
        self._server = server
        self._proved = proved
        self._peer = "unknown"
        self._sock: socket.socket | None = None
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self._transcript: Transcript | None = None
        self._over = False
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(HANDSHAKE_S, self.refuse, "timeout")
        self._beginning: asyncio.Task[None] | None = None

    def begin(self, sock: socket.socket, peer: str) -> None:
        """Begin with the connection that was accepted from the address `peer`."""
        self._sock, self._peer = sock, peer
        self._beginning = asyncio.create_task(self._begin(sock))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)
        if self._over:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.refuse("closed")

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._over:
            return
        if self._transcript is None:
            self._data += data[: HELLO_BYTES + 1]
            if not may_become_hello(self._data):
                self.refuse("preface")
            elif len(self._data) == HELLO_BYTES and self._transport is not None:
                self._answer()
            return
        needed = PROOF_BYTES - len(self._data)
        self._data += data[:needed]
        if len(self._data) == PROOF_BYTES:
            self._judge(self._transcript, data[needed:])

    def refuse(self, reason: Reason) -> None:
        """Cut the connection off without a word, for that reason. Idempotent."""
        self._end(reason)

    def cut(self) -> None:
        """Cut the connection off because the server stops."""
        self._end(None)

    async def _begin(self, sock: socket.socket) -> None:
        """Give the connection an event loop's transport, with TLS where that is asked for."""
        context = None if self._server.ssl is None else self._server.ssl()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self,
                sock,
                ssl=context,
                ssl_handshake_timeout=None if context is None else HANDSHAKE_S,
            )
        except OSError as error:
            self.refuse("tls" if isinstance(error, tls.SSLError) else "closed")

    def _answer(self) -> None:
        """Prove this side to whoever said hello, which tells nothing about the secret."""
        purpose, nonce = read_hello(self._data)
        self._data = b""
        self._transcript = Transcript(purpose, self._server.address, nonce, new_nonce())
        proof = self._transcript.proof(self._server.secret, "server")
        assert self._transport is not None
        self._transport.write(self._transcript.server_nonce + proof)

    def _judge(self, transcript: Transcript, rest: bytes) -> None:
        """Hand a member over to its purpose, with the data that came behind its proof."""
        if not transcript.is_proved(self._server.secret, "client", self._data):
            self.refuse("secret")
            return
        protocol = self._proved(transcript.purpose)
        if protocol is None:
            self.refuse("too_many")
            return
        transport = self._transport
        assert transport is not None
        self._leave(None)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if rest:
            protocol.data_received(rest)

    def _end(self, reason: Reason | None) -> None:
        if self._over:
            return
        self._leave(reason)
        if self._transport is not None:
            self._transport.abort()
        elif self._sock is not None:
            with suppress(OSError):  # which ends TLS, too
                self._sock.shutdown(socket.SHUT_RDWR)

    def _leave(self, reason: Reason | None) -> None:
        self._over, self._data = True, b""
        self._deadline.cancel()
        self._server.left(self, self._peer, reason)
