"""The WebSocket front end: several generations on one socket, each with the client's id.

Each generation waits for the socket by itself. So the router merges the unread events of each
generation (`cluster/router/event_buffer.py`). The end of the socket cancels all
generations.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from cluster.api import Event, Generator, Tokens
from cluster.api.error_mapping import http_error
from cluster.api.event_streams import StallWatch, closing, end, merge, unless
from cluster.api.off_loop import off_loop, write_event
from cluster.gateway.openai_chunks import Json
from cluster.gateway.openai_requests import OpenAICall
from cluster.gateway.sse import dump, dump_large
from cluster.gateway.websocket_messages import (
    CANCEL,
    Messages,
    failed,
    read_call,
    read_object,
    take_id,
    take_type,
)
from cluster.telemetry.router_metrics import FRONT_END_ERRORS
from cluster.tenants.api_keys import ApiKeys, identify
from engine.errors import (
    Cancelled,
    Internal,
    InvalidRequest,
    NotFound,
    Overloaded,
    TandemError,
    Unavailable,
)
from engine.kv.prefix_digest import DEFAULT_TENANT

log = logging.getLogger(__name__)

MOST_AT_ONCE = 64
Merged = AsyncIterator[tuple[int, Event]]
TENANT_HEADER = "x-tandem-tenant"
# The service restarts: open another socket.
_RESTARTS = 1012


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
        self._sessions: set[_SocketSession] = set()

    async def serve(self, socket: WebSocket) -> None:
        """Serve a socket to its end, or refuse it with the answer that HTTP would give."""
        refusal = self._refusal(socket)
        if refusal is not None:
            await socket.send_denial_response(refusal)
            return
        await socket.accept()
        session = _SocketSession(self, socket)
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

    def streams(self, call: OpenAICall) -> list[AsyncIterator[Event]]:
        """The events of each request of a call that came now."""
        arrived_s = self._arrived()
        requests = (replace(request, arrived_s=arrived_s) for request in call.requests)
        return [self._generator.generate(request) for request in requests]

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


class _SocketSession:
    """One socket and its generations."""

    def __init__(self, gateway: SocketGateway, socket: WebSocket) -> None:
        self._gateway = gateway
        self._socket = socket
        self._cancels: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()
        self._ended = asyncio.Event()

    async def leave(self) -> None:
        """Close the socket when no generation runs on it any more."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        with suppress(RuntimeError, WebSocketDisconnect):
            # Refused where it is closed already.
            await self._socket.close(_RESTARTS, "the router is about to end")
        self._over.set()
        await self._ended.wait()

    async def run(self) -> None:
        """Take messages until the socket closes, or the client reads nothing for too long."""
        try:
            await unless(self._over.wait(), self._read())
        finally:
            await end(list(self._tasks))
            self._ended.set()

    async def _read(self) -> None:
        try:
            async with StallWatch(self._gateway.stall_s) as watch:
                while (message := await self._socket.receive())["type"] == "websocket.receive":
                    reply = await self._obey(message.get("text"))
                    if reply is not None:
                        await watch.write(self._send(reply))
        except TimeoutError:
            self._stalled()
        except WebSocketDisconnect:
            pass

    async def _obey(self, text: str | None) -> Json | None:
        """Carry a message out; returns the answer to a wrong message."""
        name = None
        try:
            document = await off_loop(len(text or ""), lambda: read_object(text))
            name = take_id(document)
            kind = take_type(document)
            if kind == CANCEL:
                self._cancel(name)
            else:
                size = len(text or "")
                await self._begin(name, kind, document, size)
        except TandemError as error:
            FRONT_END_ERRORS.inc(front_end="http", error=type(error).__name__)
            return failed(name, error)
        except Exception:
            log.exception("a message ended in a fault")
            return failed(name, Internal("internal error"))
        return None

    def _cancel(self, name: str) -> None:
        if name not in self._cancels:
            raise NotFound(f"nothing runs here under the id {name!r}", field="id")
        self._cancels[name].set()

    async def _begin(self, name: str, kind: str, document: Json, size: int) -> None:
        self._gateway.check_open()
        if name in self._cancels:
            raise InvalidRequest(f"the id {name!r} runs already", field="id")
        if len(self._tasks) >= MOST_AT_ONCE:
            message = f"{MOST_AT_ONCE} generations run on this socket, the most there may"
            raise Overloaded(message, retry_after_s=1.0)
        tenant = self._gateway.tenant(self._socket)
        request_id = uuid.uuid4().hex
        call = await off_loop(size, lambda: read_call(kind, document, request_id, tenant))
        messages = Messages(name, kind, call, self._gateway.generator)
        streams = self._gateway.streams(call)
        self._cancels[name] = asyncio.Event()
        task = asyncio.create_task(self._run(name, messages, merge(streams)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, name: str, messages: Messages, events: Merged) -> None:
        """Run one generation; the last message tells how it ended."""
        try:
            last = await unless(self._cancels[name].wait(), self._relay(messages, events))
            if last is None:
                last = failed(name, Cancelled("the request was cancelled"))
        except TandemError as error:
            last = failed(name, error)
        except (WebSocketDisconnect, TimeoutError) as error:
            self._gone(error)
            return
        except Exception:
            log.exception("a generation ended in a fault")
            last = failed(name, Internal("internal error"))
        finally:
            # Before the client learns of the end and uses the id again.
            del self._cancels[name]
        await self._send_last(last)

    async def _relay(self, messages: Messages, events: Merged) -> Json:
        """Write a generation's messages; returns the last one."""
        async with closing(events), StallWatch(self._gateway.stall_s) as watch:
            async for prompt_index, event in events:
                text = await write_event(event, partial(_text, messages, prompt_index))
                if text is not None:
                    await watch.write(self._send_text(text))
        return messages.end()

    async def _send(self, message: Json) -> None:
        await self._send_text(dump(message).decode())

    async def _send_text(self, text: str) -> None:
        if self._socket.application_state is not WebSocketState.CONNECTED:
            raise WebSocketDisconnect(_RESTARTS)  # it is being closed from here
        await self._socket.send_text(text)

    async def _send_last(self, message: Json) -> None:
        try:
            async with StallWatch(self._gateway.stall_s) as watch:
                await watch.write(self._send(message))
        except (WebSocketDisconnect, TimeoutError) as error:
            self._gone(error)

    def _gone(self, error: Exception) -> None:
        if isinstance(error, TimeoutError):
            self._stalled()

    def _stalled(self) -> None:
        log.info("a client read nothing for %g s and its socket was closed", self._gateway.stall_s)
        self._over.set()


def _text(messages: Messages, prompt_index: int, event: Event) -> str | None:
    """The message for an event as JSON; None for none."""
    message = messages.of(prompt_index, event)
    write = dump_large if isinstance(event, Tokens) and event.sampled else dump
    return None if message is None else write(message).decode()
