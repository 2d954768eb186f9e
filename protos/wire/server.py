"""The listening side: members prove the secret here, and strangers get nothing.

TCP (TLS) → proof of the secret → the purpose's own protocol
"""

from __future__ import annotations

import asyncio
import socket
import ssl as tls
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from protos.wire.accepting import accept_all
from protos.wire.handshake import Purpose
from protos.wire.refusals import Reason, RefusedConnections
from protos.wire.secret import ClusterSecret
from protos.wire.stranger import ServerSide, Stranger

# Bound: connections at a time that have not proved the secret.
MOST_STRANGERS = 256


class Accept(Protocol):
    """Makes the protocol of a proved connection; None where there are too many."""

    def __call__(self) -> asyncio.Protocol | None:
        """The protocol, which gets `connection_made` next."""
        ...


class WireServer:
    """One port for all purposes of a member.

    `refused` is called with the reason of each refused connection. With `ssl`, which makes the
    context of each connection, every connection begins with TLS. `address` (host:port) is the
    address that clients dial and that both sides prove.
    """

    def __init__(
        self,
        secret: ClusterSecret,
        accepts: Mapping[Purpose, Accept],
        refused: Callable[[str], None] = lambda reason: None,
        ssl: Callable[[], tls.SSLContext] | None = None,
        most_strangers: int = MOST_STRANGERS,
    ) -> None:
        self.address = ""
        self._secret = secret
        self._accepts = dict(accepts)
        self._ssl = ssl
        self._most = most_strangers
        self._refused = RefusedConnections("internal", refused)
        # In the order of their arrival; a dict for its keys.
        self._strangers: dict[Stranger, None] = {}
        self._sock: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    @property
    def strangers(self) -> int:
        """Connections that have not proved the secret yet."""
        return len(self._strangers)

    async def start(self, sock: socket.socket, address: str) -> None:
        """Take connections from a socket that listens; `stop` closes it."""
        self.address = address
        self._sock = sock
        self._accepting = asyncio.create_task(
            accept_all(sock, self._take, self._refuse_oldest), name=f"listener at {address}"
        )

    async def stop(self) -> None:
        """Take no more connections, and cut strangers off. Proved connections stay. Idempotent."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        if self._sock is not None:
            self._sock.close()
        for stranger in list(self._strangers):
            stranger.cut()
        self._refused.close()

    def _take(self, sock: socket.socket, peer: str) -> None:
        # Room for a newcomer: so strangers cannot lock members out.
        if len(self._strangers) >= self._most:
            self._refuse_oldest()
        side = ServerSide(self._secret, self.address, self._ssl, self._left)
        stranger = Stranger(side, self._proved)
        self._strangers[stranger] = None
        stranger.begin(sock, peer)

    def _refuse_oldest(self) -> None:
        if self._strangers:
            next(iter(self._strangers)).refuse("too_many")

    def _left(self, stranger: Stranger, peer: str, reason: Reason | None) -> None:
        with suppress(KeyError):
            del self._strangers[stranger]
            if reason is not None:
                self._refused.add(reason, peer)

    def _proved(self, purpose: Purpose) -> asyncio.Protocol | None:
        accept = self._accepts.get(purpose)
        return None if accept is None else accept()
