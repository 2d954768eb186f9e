"""One HTTP connection: uvicorn's, with bounds on what comes before the application sees it.

    waits for headers ── head_s ──▶ reads a body ──▶ works ──▶ waits for headers …

Bytes are counted as long as they bring neither complete headers nor a byte of a body. So one bound
holds for request lines, headers, chunk extensions, trailers, and blank lines between requests.
"""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from cluster.gateway.connections.client_timer import ClientTimer
from cluster.gateway.connections.departure import DepartureProbe
from cluster.gateway.connections.refusals import (
    FULL,
    LARGE_HEAD,
    LATE,
    LONG_URL,
    MALFORMED,
    PIPELINED,
    Refusal,
)
from cluster.gateway.connections.server_config import ServerConfig


class _RefusedError(Exception):
    """Ends the parser's run; the connection knows the refusal."""


class HttpConnection(HttpToolsProtocol):
    """A connection that is refused once its client exceeds a limit.

    A refused client gets an answer if none has begun. What it still sends is dropped.
    """

    config: ServerConfig

    def __init__(
        self,
        config: ServerConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._registry = config.registry
        self._limits = config.registry.limits
        self._refusal = MALFORMED
        self._deaf = False
        self._in_head = False
        self._quiet_bytes = self._head_bytes = self._head_fields = self._dropped_bytes = 0
        self._running: RequestResponseCycle | None = None
        self._head_timer = ClientTimer(self.loop, self._limits.head_s, self._head_late)
        self._stall_timer = ClientTimer(self.loop, self._limits.stall_s, self.abort)
        self._linger_timer = ClientTimer(self.loop, self._limits.linger_s, self.abort)
        self._departure = DepartureProbe(self.loop, self._unanswered)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for headers, or refuse the connection because there are too many."""
        super().connection_made(transport)
        if self._registry.admit(self):
            self._await_head()
        else:
            self._refuse(FULL)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the running request, also where another one was sent behind it."""
        self._stop_timers()
        self._registry.leave(self)
        self.pipeline.clear()
        if self._working:
            self._leave_request()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more. What it has asked for is answered, but not over TLS."""
        tls = self.transport.get_extra_info("ssl_object") is not None
        if tls or self._deaf or not self._working or self.cycle.more_body:
            return False
        self._deaf = True
        self.cycle.keep_alive = False
        self._departure.start(self.transport)
        return True

    def data_received(self, data: bytes) -> None:
        """Parse `data`, or drop it if the connection takes nothing more."""
        if self._deaf:
            self._drop(len(data))
            return
        self._unset_keepalive_if_required()
        self._quiet_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(self._refusal)
        else:
            if self._quiet_bytes > self._limits.head_bytes:
                self._refuse(LARGE_HEAD)
            elif not self._working and self.timeout_keep_alive_task is None:
                self._await_head()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = self._head_fields = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the URL."""
        super().on_url(url)
        if len(self.url) > self._limits.url_bytes:
            self._stop(LONG_URL)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header. Trailers are dropped."""
        self._head_fields += 1
        self._head_bytes += len(name) + len(value)
        if (
            self._head_fields > self._limits.headers
            or self._head_bytes + len(self.url) > self._limits.head_bytes
        ):
            self._stop(LARGE_HEAD)
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The headers are complete."""
        self._in_head = False
        self._quiet_bytes = 0
        self._head_timer.stop()
        self._resolve_host()
        if len(self.pipeline) >= self._limits.pipelined:
            self._stop(PIPELINED)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body. What comes after the answer is dropped."""
        self._quiet_bytes = 0
        super().on_body(body)
        if self.cycle is not None and self.cycle.response_complete:
            self._drop(len(body))

    def on_message_complete(self) -> None:
        """A request has arrived whole."""
        self._quiet_bytes = 0
        super().on_message_complete()
        if self._working:
            self._registry.work(self)
        elif self.cycle is not None:
            # The rest of a body whose answer did not need it.
            self.cycle.more_body = False
            self._head_timer.stop()
            self._rest()

    def on_response_complete(self) -> None:
        """An answer is complete: begin the next request, or wait for it."""
        super().on_response_complete()
        if not self._working or self.cycle.more_body:
            self._registry.wait(self)
        if not self._working and (self._in_head or self.cycle.more_body):
            self._unset_keepalive_if_required()
            self._await_head()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to a WebSocket."""
        self._stop_timers()
        self._registry.leave(self)
        super().handle_websocket_upgrade()

    def pause_writing(self) -> None:
        """The write buffer is full: the client has `stall_s` to read on."""
        super().pause_writing()
        self._stall_timer.start()

    def resume_writing(self) -> None:
        """The client has read on."""
        super().resume_writing()
        self._stall_timer.stop()

    def abort(self) -> None:
        """Close the connection at once. What is not written yet is lost."""
        self._deaf = True
        self.transport.abort()

    @property
    def _working(self) -> bool:
        """Whether a request runs or waits for an earlier one of this connection."""
        return bool(self.pipeline) or (
            self._running is not None and not self._running.response_complete
        )

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _resolve_host(self) -> None:
        """Check that there is one host; an absolute URL replaces the header (RFC 9112, 3.2.2)."""
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            self._stop(MALFORMED)
        if self.url.startswith(b"/"):
            return
        url = httptools.parse_url(self.url)
        if url.schema is None or url.host is None:
            self._stop(MALFORMED)
        host = url.host if url.port is None else b"%s:%d" % (url.host, url.port)
        self.headers[:] = [field for field in self.headers if field[0] != b"host"]
        self.headers.append((b"host", host))
        self.url = (url.path or b"/") + (b"?" + url.query if url.query else b"")

    def _upgrade(self, rest: bytes) -> None:
        """Begin a WebSocket with the bytes after the handshake, which has been parsed.

        Another protocol is ignored, and the connection ends with the answer, because the parser
        cannot read on after a request to upgrade.
        """
        if self._should_upgrade():
            if self._working:
                self._refuse(MALFORMED)
            else:
                self.handle_websocket_upgrade()
                if rest and not self.transport.is_closing():
                    self.transport.get_protocol().data_received(rest)  # type: ignore[attr-defined]
        else:
            self._deaf = True
            self.cycle.keep_alive = False

    def _stop(self, refusal: Refusal) -> NoReturn:
        """Refuse the connection from within a callback of the parser."""
        self._refusal = refusal
        raise _RefusedError

    def _refuse(self, refusal: Refusal) -> None:
        """Take nothing more; tell the client why, unless an answer has begun."""
        self._registry.refusals.add(refusal.reason)
        self._deaf = True
        self._stop_timers()
        answered = bool(self.pipeline)
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            answered = answered or self._running.response_started
            self._leave_request()
        if answered or self.transport.is_closing():
            self.transport.abort()
            return
        self.flow.resume_reading()
        self.transport.write(refusal.answer)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._registry.linger(self)
        self._linger_timer.start()

    def _unanswered(self) -> bool:
        running = self._running
        return self._working and running is not None and not running.response_started

    def _leave_request(self) -> None:
        """Tell the running request that its client is gone."""
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()

    def _drop(self, count: int) -> None:
        self._dropped_bytes += count
        if self._dropped_bytes > self._limits.dropped_bytes:
            self.abort()

    def _await_head(self) -> None:
        if not self._deaf:
            self._head_timer.start()

    def _head_late(self) -> None:
        """Close the connection. Nothing is answered where nothing was asked."""
        if self._in_head:
            self._refuse(LATE)
        else:
            self._registry.refusals.add(LATE.reason)
            self.abort()

    def _rest(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _stop_timers(self) -> None:
        self._unset_keepalive_if_required()
        for timer in (self._head_timer, self._stall_timer, self._linger_timer, self._departure):
            timer.stop()
