"""Takes TLS connections from a listening socket, and tells which handshakes failed.

asyncio's own servers tell nobody. Here each handshake has a deadline, the number of handshakes at a
time is bounded, and every refused connection has a reason.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from protos.wire.accepting import accept_all

log = logging.getLogger(__name__)

# Bounds: how long a handshake may take, and how many go on at a time.
HANDSHAKE_S = 10.0
MOST_HANDSHAKES = 256
Refused = Callable[[str, str], None]


class TlsListener:
    """A listening socket whose connections get a protocol of `protocol` after their handshake.

    `context` is called for every connection. `refused` gets the reason and the address of each
    refused connection: `tls`, `timeout`, `too_many`, or `closed` where the client hung up.
    """

    def __init__(
        self,
        sock: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        context: Callable[[], ssl.SSLContext],
        refused: Refused,
        timeout_s: float = HANDSHAKE_S,
        most: int = MOST_HANDSHAKES,
    ) -> None:
        self._sock = sock
        self._protocol = protocol
        self._context = context
        self._refused = refused
        self._timeout_s = timeout_s
        self._most = most
        # In the order of their arrival.
        self._shaking: dict[asyncio.Task[None], str] = {}
        self._accepting = asyncio.create_task(
            accept_all(sock, self._begin, self._refuse_oldest), name="TLS listener"
        )

    def close(self) -> None:
        """Take no more connections, and end the handshakes. Idempotent."""
        self._accepting.cancel()
        for task in self._shaking:
            task.cancel()
        self._sock.close()

    async def wait_closed(self) -> None:
        """Wait until nothing of it runs."""
        await asyncio.gather(self._accepting, *self._shaking, return_exceptions=True)

    def _begin(self, sock: socket.socket, peer: str) -> None:
        """Begin a handshake. The oldest one gives way, so that silent clients lock nobody out."""
        if len(self._shaking) >= self._most:
            self._refuse_oldest()
        task = asyncio.create_task(self._shake(sock, peer))
        self._shaking[task] = peer
        task.add_done_callback(partial(self._shook, sock))

    def _refuse_oldest(self) -> None:
        if self._shaking:
            oldest = next(iter(self._shaking))
            oldest.cancel()
            self._refused("too_many", self._shaking.pop(oldest))

    def _shook(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._shaking.pop(task, None)
        if task.cancelled():  # perhaps before it took the socket
            with suppress(OSError):
                sock.close()

    async def _shake(self, sock: socket.socket, peer: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                await loop.connect_accepted_socket(
                    self._protocol,
                    sock,
                    ssl=self._context(),
                    ssl_handshake_timeout=2 * self._timeout_s,  # the deadline above comes first
                )
        except OSError as error:
            self._refused(_reason(error), peer)
        except Exception:
            log.exception("a fault at a new connection")


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "timeout"
    return "tls" if isinstance(error, ssl.SSLError) else "closed"
