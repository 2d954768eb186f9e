"""One WebSocket connection: uvicorn's, with bounds on what comes before the application sees it.

Whatever a client sends or leaves out, the connection ends without a traceback.
"""

from __future__ import annotations

import asyncio
from asyncio.transports import BaseTransport
from typing import Any

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame

from cluster.gateway.connections.byte_budget import Reservation
from cluster.gateway.connections.client_timer import ClientTimer
from cluster.gateway.connections.server_config import ServerConfig

# Parsed at a time, so that a flood of tiny frames cannot hold the event loop for long.
_PIECE_BYTES = 2048


class WebSocketConnection(WebSocketsSansIOProtocol):
    """A connection that is failed once its client breaks the protocol or exceeds a limit."""

    config: ServerConfig

    def __init__(
        self,
        config: ServerConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.active_s = self.loop.time()
        self._registry = config.registry
        self._limits = config.registry.limits
        self._unparsed = bytearray()
        self._failed = False
        self._reservation = Reservation(config.registry.unfinished)
        self._controls = 0
        self._controls_since_s = self.active_s
        self._stall_timer = ClientTimer(self.loop, self._limits.stall_s, self.abort)
        self._message_timer = ClientTimer(self.loop, self._limits.message_s, self._message_late)

    def connection_made(self, transport: BaseTransport) -> None:
        """The HTTP connection becomes a WebSocket."""
        super().connection_made(transport)
        self._registry.join(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop what has not been parsed."""
        self._registry.leave(self)
        self._reservation.release()
        self._message_timer.stop()
        self._stall_timer.stop()
        self._unparsed.clear()
        self.frames = []
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse `data` until a message has come; the rest waits for the application."""
        if not self._failed:
            self._unparsed += data
            self._parse()

    async def receive(self) -> ASGIReceiveEvent:
        """The next event of the client. The client is read from as long as none is left."""
        message = await self.queue.get()
        self.active_s = self.loop.time()
        if self.queue.empty():
            if self._unparsed:
                # Others get their turn between two pieces.
                await asyncio.sleep(0)
            self.read_paused = False
            self._parse()
        return message

    async def send(self, message: ASGISendEvent) -> None:
        """Send an event of the application; raises ClientDisconnected after the end."""
        if self._over:
            raise ClientDisconnected
        self.active_s = self.loop.time()
        try:
            await super().send(message)
        except RuntimeError:
            if self._over:
                raise ClientDisconnected from None
            raise
        if message["type"] != "websocket.send":
            self._parse()

    def handle_ping(self) -> None:
        """Answer a ping."""
        output = b"".join(self.conn.data_to_send())
        if not self._failed and not self.transport.is_closing():
            self.transport.write(output)
        self._count_control()

    def handle_pong(self, event: Frame) -> None:
        """Take an answer to a ping, or a pong that nobody asked for."""
        super().handle_pong(event)
        self._count_control()

    def handle_parser_exception(self) -> None:
        """End the connection, because the client broke the protocol or a limit.

        The client has `linger_s` to read the reason. What it still sends is dropped. The stream is
        not ended before, because clients that still write would not read the reason.
        """
        self._registry.refusals.add("websocket")
        closed = self.conn.close_sent
        code = CloseCode.ABNORMAL_CLOSURE if closed is None else closed.code
        reason = "" if closed is None else closed.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.close_sent = self._failed = True
        self._unparsed.clear()
        self.frames = []
        self._reservation.release()
        if self.transport.is_closing():
            return
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.resume_reading()
        if self.close_timer is not None:
            self.close_timer.cancel()
        self.close_timer = self.loop.call_later(self._limits.linger_s, self.transport.abort)

    def send_receive_event_to_app(self) -> None:
        """Hand a whole message to the application."""
        self._message_timer.stop()
        data, self.frames = b"".join(self.frames), []
        if self.close_sent:
            return
        if self.curr_msg_data_type == "bytes":
            self.queue.put_nowait({"type": "websocket.receive", "bytes": data})
        else:
            try:
                text = data.decode()
            except UnicodeDecodeError:
                self._fail(CloseCode.INVALID_DATA, "a text message must be UTF-8")
                return
            self.queue.put_nowait({"type": "websocket.receive", "text": text})
        self.read_paused = True

    def keepalive_timeout(self) -> None:
        """End the connection of a client that answered no ping, and reads nothing either."""
        super().keepalive_timeout()
        self.transport.abort()

    def shutdown(self) -> None:
        """Close because the server stops."""
        try:
            super().shutdown()
        except InvalidState:
            self.transport.close()  # the client closes, too

    def pause_writing(self) -> None:
        """The write buffer is full: the client has `stall_s` to read on."""
        super().pause_writing()
        self._stall_timer.start()

    def resume_writing(self) -> None:
        """The client has read on."""
        super().resume_writing()
        self._stall_timer.stop()

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    @property
    def _over(self) -> bool:
        return self.close_sent or self.disconnected or self.transport.is_closing()

    @property
    def _blocked(self) -> bool:
        """Whether a message waits for the application, or the handshake for its answer."""
        return self.read_paused or (self.handshake_initiated and not self.handshake_complete)

    def _parse(self) -> None:
        """Parse piece by piece, and read on when everything is parsed."""
        while self._unparsed and not self._blocked and not self.transport.is_closing():
            piece = bytes(self._unparsed[:_PIECE_BYTES])
            del self._unparsed[:_PIECE_BYTES]
            self._take(piece)
        if self._failed or self.transport.is_closing():
            return
        if self._blocked:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _take(self, piece: bytes) -> None:
        super().data_received(piece)
        if self._failed:
            return
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.handshake_complete = True
            self.handle_parser_exception()
        elif len(self.frames) > self._limits.fragments:
            self._fail(CloseCode.POLICY_VIOLATION, "a message has too many fragments")
        elif not self._reservation.resize(
            len(self.conn.reader.buffer) + (self.conn.current_size or 0)
        ):
            self._fail(CloseCode.TRY_AGAIN_LATER, "too many large messages at once")
        elif self.frames:
            self._message_timer.start()

    def _count_control(self) -> None:
        now_s = self.loop.time()
        if now_s - self._controls_since_s > self._limits.control_s:
            self._controls, self._controls_since_s = 0, now_s
        self._controls += 1
        if self._controls > self._limits.control_frames:
            self._fail(CloseCode.POLICY_VIOLATION, "too many pings and pongs")

    def _message_late(self) -> None:
        self._fail(CloseCode.POLICY_VIOLATION, "a message did not come in time")

    def _fail(self, code: CloseCode, reason: str) -> None:
        if not self._over:
            self.conn.fail(code, reason)
            self.handle_parser_exception()
