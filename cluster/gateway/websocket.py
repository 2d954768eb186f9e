"""The WebSocket front end: several generations on one socket, each with the client's id."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from starlette.responses import Response
from starlette.websockets import WebSocket

from cluster.api import Generator
from cluster.api.error_mapping import http_error
from cluster.api.tracing import REQUEST_ID, Trace
from cluster.gateway.sse import dump
from cluster.gateway.websocket_session import SocketSession
from cluster.telemetry.router_metrics import FRONT_END_ERRORS
from cluster.tenants.api_keys import ApiKeys, identify
from engine.errors import TandemError, Unavailable
from engine.kv.prefix_digest import DEFAULT_TENANT

TENANT_HEADER = "x-tandem-tenant"


class SocketGateway:
    """Answers `/v1/stream`. A socket whose client reads nothing for `stall_s` is closed."""

    def __init__(
        self,
        generator: Generator,
        *,
        stall_s: float,
        keys: ApiKeys | None = None,
        arrived: Callable[[], float] = time.monotonic,
    ) -> None:
        self._arrived = arrived
        self._generator = generator
        self._stall_s = stall_s
        self._keys = keys
        self._leaving = False
        self._sessions: set[SocketSession] = set()

    async def serve(self, socket: WebSocket) -> None:
        """Serve a socket to its end, or refuse it with the answer that HTTP would give."""
        refusal = self._refusal(socket)
        if refusal is not None:
            await socket.send_denial_response(refusal)
            return
        name = Trace.of(socket.headers.get).request_id
        await socket.accept(headers=[(REQUEST_ID.encode(), name.encode())] if name else None)
        session = SocketSession(self, socket)
        self._sessions.add(session)
        try:
            await session.run()
        finally:
            self._sessions.discard(session)

    async def drain(self, timeout_s: float) -> None:
        """Begin no generations, and close each socket when its generations have ended. Idempotent.

        Sockets that are still open after `timeout_s` stay open.
        """
        self._leaving = True
        ends = [session.leave() for session in self._sessions]
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*ends)

    def check_open(self) -> None:
        """Raise Unavailable if no generation may begin any more."""
        if self._leaving:
            raise Unavailable("this router is about to end", retry_after_s=1.0)

    @property
    def generator(self) -> Generator:
        """The generator of the tokens."""
        return self._generator

    @property
    def arrived_s(self) -> float:
        """When a message that is read now came to the socket (monotonic)."""
        return self._arrived()

    @property
    def stall_s(self) -> float:
        """The most seconds that a client may take to read one message."""
        return self._stall_s

    def tenant(self, socket: WebSocket) -> str:
        """The tenant of a socket; raises Unauthenticated, also for a key that was removed."""
        named = socket.headers.get(TENANT_HEADER, DEFAULT_TENANT)
        return identify(self._keys, socket.headers.get("authorization"), named)

    def _refusal(self, socket: WebSocket) -> Response | None:
        try:
            self.check_open()
            self.tenant(socket)
        except TandemError as error:
            FRONT_END_ERRORS.inc(front_end="http", error=type(error).__name__)
            status, body, headers = http_error(error)
            return Response(dump(body), status, headers, "application/json")
        return None
