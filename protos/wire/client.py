"""The dialling side: nothing is sent before the server has proved the cluster's secret."""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import Callable
from typing import cast

from engine.errors import TandemError, Unavailable
from protos.wire.handshake import (
    ANSWER_BYTES,
    HANDSHAKE_S,
    NONCE_BYTES,
    Purpose,
    Transcript,
    hello,
    new_nonce,
)
from protos.wire.secret import ClusterSecret


class Connector:
    """Dials other members. `ssl` makes the context of each connection; without it there is no TLS.

    A certificate must be for `server_hostname`, where that is given.
    """

    def __init__(
        self,
        secret: ClusterSecret,
        ssl: Callable[[], tls.SSLContext] | None = None,
        server_hostname: str | None = None,
    ) -> None:
        self._secret = secret
        self._ssl = ssl
        self._server_hostname = server_hostname

    async def connect(
        self,
        address: str,
        purpose: Purpose,
        protocol: asyncio.Protocol,
        timeout_s: float = HANDSHAKE_S,
    ) -> None:
        """Give a proved connection to the protocol. Raises Unavailable, also after `timeout_s`."""
        dialling = _Dialling(self._secret, address, purpose, protocol)
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                context = None if self._ssl is None else self._ssl()
                name = None if context is None else self._server_hostname
                await loop.create_connection(
                    lambda: dialling,
                    host.strip("[]"),
                    int(port),
                    ssl=context,
                    server_hostname=name,
                    ssl_handshake_timeout=None if context is None else timeout_s,
                )
                await dialling.proved
        except TandemError as error:
            raise Unavailable(f"no connection: {error.message}") from None
        # TimeoutError and ssl.SSLError are OSErrors, and a port beyond 65535 overflows.
        except (OSError, ValueError, OverflowError) as error:
            reason = str(error) or f"no answer for {timeout_s:g} s"
            raise Unavailable(f"no connection: {reason}") from None
        finally:
            dialling.give_up()


class _Dialling(asyncio.Protocol):
    """The client's end of a connection until the server has proved the secret."""

    def __init__(
        self, secret: ClusterSecret, address: str, purpose: Purpose, protocol: asyncio.Protocol
    ) -> None:
        self.proved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._secret = secret
        self._address = address
        self._purpose: Purpose = purpose
        self._protocol = protocol
        self._nonce = new_nonce()
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(hello(self._purpose, self._nonce))

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._fail("the peer hung up before it proved the cluster's secret")

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self.proved.done():
            return
        self._data += data[: ANSWER_BYTES + 1]
        if len(self._data) > ANSWER_BYTES:
            self._fail("the peer did not prove the cluster's secret")
        elif len(self._data) == ANSWER_BYTES:
            self._judge(self._data[:NONCE_BYTES], self._data[NONCE_BYTES:])

    def give_up(self) -> None:
        """Close the connection, unless it was proved and handed over."""
        if self.proved.done() and not self.proved.cancelled() and not self.proved.exception():
            return
        self.proved.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _judge(self, nonce: bytes, proof: bytes) -> None:
        transcript = Transcript(self._purpose, self._address, self._nonce, nonce)
        if not transcript.is_proved(self._secret, "server", proof):
            self._fail("the peer did not prove the cluster's secret")
            return
        transport = self._transport
        assert transport is not None
        transport.write(transcript.proof(self._secret, "client"))
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(transport)
        self.proved.set_result(None)

    def _fail(self, reason: str) -> None:
        if not self.proved.done():
            self.proved.set_exception(Unavailable(reason))
