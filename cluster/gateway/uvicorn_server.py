"""Serves an ASGI app with uvicorn inside a running event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.api.limits import MAX_REQUEST_BYTES
from cluster.gateway.connections.http_connection import HttpConnection
from cluster.gateway.connections.limits import ConnectionLimits, watch_peers
from cluster.gateway.connections.refusals import http_refusals
from cluster.gateway.connections.registry import ConnectionRegistry
from cluster.gateway.connections.server_config import ServerConfig
from cluster.gateway.connections.websocket_connection import WebSocketConnection
from cluster.sockets import listening_socket
from protos.wire.refusals import RefusedConnections
from protos.wire.tls_listener import HANDSHAKE_S, MOST_HANDSHAKES, TlsListener

log = logging.getLogger(__name__)

PING_S = 10.0
PING_TIMEOUT_S = 60.0
Drain = Callable[[float], Awaitable[None]]
# The least time for the last HTTP answers, if WebSockets have used the grace up.
_LEAST_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class HttpTls:
    """The TLS of a server: the context of each new connection.

    `timeout_s` and `most` bound the handshakes.
    """

    context: Callable[[], ssl.SSLContext]
    timeout_s: float = HANDSHAKE_S
    most: int = MOST_HANDSHAKES


class _UvicornServer(uvicorn.Server):
    """A uvicorn server that handles no signals, and sets `ready` when it has started."""

    config: ServerConfig

    def __init__(self, config: ServerConfig, tls: HttpTls | None = None) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self._tls = tls

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then set `ready`."""
        if self._tls is None:
            await super().startup(sockets)
        else:
            self.servers = [self._listen(sock, self._tls) for sock in sockets or ()]  # type: ignore[misc]
            self.started = True
        self.ready.set()

    def _listen(self, sock: socket.socket, tls: HttpTls) -> TlsListener:
        """As uvicorn's own start, which has no lifespan here; it tells of no failed handshake."""

        def protocol() -> asyncio.Protocol:
            return self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state={}
            )

        refused = self.config.registry.refusals.add
        return TlsListener(sock, protocol, tls.context, refused, tls.timeout_s, tls.most)


class _Stoppable:
    """Wraps the app: a request that is cancelled by the server's stop ends without a traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app."""
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            log.info("%s was cut off by the server's stop", scope.get("path"))


class HttpServer:
    """A running HTTP server, bound to `port`."""

    def __init__(
        self,
        server: _UvicornServer,
        task: asyncio.Task[None],
        port: int,
        drain: Drain | None = None,
    ) -> None:
        self.port = port
        self._drain = drain
        self._server = server
        self._task = task

    async def stop(self, grace_s: float | None = None) -> None:
        """Take no more requests, end running requests after the grace, and wait for the end.

        `grace_s` replaces the grace that the server was started with.
        """
        config = self._server.config
        if grace_s is not None:
            config.timeout_graceful_shutdown = math.ceil(grace_s)
        if self._drain is not None:
            await self._end_sockets(self._drain, float(config.timeout_graceful_shutdown or 0))
        self._server.should_exit = True
        await self._task
        config.registry.refusals.close()
        # uvicorn cancels what outlives the grace, but does not wait for it.
        await asyncio.gather(*self._server.server_state.tasks, return_exceptions=True)

    async def _end_sockets(self, drain: Drain, grace_s: float) -> None:
        """End the WebSockets before uvicorn closes them at once; HTTP takes no new requests."""
        for listening in self._server.servers:
            listening.close()
        for connection in list(self._server.server_state.connections):
            if isinstance(connection, HttpConnection):
                connection.shutdown()
        began_s = time.monotonic()
        await drain(grace_s)
        left_s = max(_LEAST_GRACE_S, grace_s - (time.monotonic() - began_s))
        self._server.config.timeout_graceful_shutdown = math.ceil(left_s)


async def start(
    app: ASGIApp,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    reuse_port: bool = False,
    grace_s: int = 5,
    max_message_bytes: int = MAX_REQUEST_BYTES,
    drain: Drain | None = None,
    tls: HttpTls | None = None,
    limits: ConnectionLimits | None = None,
    refusals: RefusedConnections | None = None,
) -> HttpServer:
    """Serve `app`; raises ConfigError where the port is taken. With `tls`, over TLS alone.

    `max_message_bytes` bounds what comes in one message of a WebSocket. `drain` ends the WebSockets
    within so many seconds, before the server stops. `limits` bounds the connections, and
    `refusals` counts refused connections.
    """
    limits = limits or ConnectionLimits()
    sock = listening_socket(host, port, reuse_port=reuse_port)
    watch_peers(sock, limits.stall_s)
    clock = asyncio.get_running_loop().time
    config = ServerConfig(
        _Stoppable(app),
        registry=ConnectionRegistry(limits, refusals or http_refusals(), clock),
        http=HttpConnection,
        ws=WebSocketConnection,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws_max_size=max_message_bytes,
        ws_ping_interval=PING_S,
        # As long as a client may read nothing, because it then answers no ping.
        ws_ping_timeout=PING_TIMEOUT_S,
        ws_per_message_deflate=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=limits.idle_s,
        timeout_graceful_shutdown=grace_s,
    )
    server = _UvicornServer(config, tls)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    ready = asyncio.create_task(server.ready.wait())
    await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        ready.cancel()
        await task
    return HttpServer(server, task, sock.getsockname()[1], drain)
