"""One WebSocket: obeys the client's messages, and writes the messages of each generation.

Each generation waits for the socket by itself. So the router merges the unread events of each
generation (`cluster/router/event_buffer.py`). The end of the socket cancels generations that
are not resumable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from cluster.api import Event, ResumeRequest, Tokens
from cluster.api.event_streams import StallWatch, closing, end, merge, unless
from cluster.api.off_loop import off_loop, write_event
from cluster.api.tracing import Trace
from cluster.gateway.answers.resumed import resumed
from cluster.gateway.answers.stream_note import StreamNote
from cluster.gateway.openai_chunks import Json
from cluster.gateway.sse import dump, dump_large
from cluster.gateway.websocket_messages import (
    CANCEL,
    RESUME,
    Messages,
    cancelled,
    failed,
    read_call,
    read_object,
    read_resume,
    take_id,
    take_stream_id,
    take_type,
)
from cluster.telemetry.router_metrics import FRONT_END_ERRORS
from engine.errors import (
    AlreadyRunning,
    Cancelled,
    Internal,
    NotFound,
    Overloaded,
    TandemError,
    Unavailable,
)

if TYPE_CHECKING:
    from cluster.gateway.websocket import SocketGateway

log = logging.getLogger(__name__)

MOST_AT_ONCE = 64
# The service restarts: open another socket.
_RESTARTS = 1012
Opened = tuple[Messages, AsyncIterator[tuple[int, Event]]]


def _new_future() -> asyncio.Future[TandemError]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True)
class _SocketRun:
    """A generation on a socket: how it begins, and how it ends if its stream is resumable.

    Closing the events of a resumable stream only detaches from it. A cancel sets `cancelled` to the
    error of the last message.
    """

    open: Callable[[], Awaitable[Opened]]
    end: Callable[[], Awaitable[object]] | None
    cancelled: asyncio.Future[TandemError] = field(default_factory=_new_future)


class SocketSession:
    """One socket and its generations. The end of the socket ends or detaches all of them."""

    def __init__(self, gateway: SocketGateway, socket: WebSocket) -> None:
        self._gateway = gateway
        self._socket = socket
        self._runs: dict[str, _SocketRun] = {}
        # The ids of generations that have ended, whose last message is on its way.
        self._ending: list[str] = []
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
                return await self._cancel(name, document)
            await self._begin(name, kind, document, len(text or ""))
        except TandemError as error:
            FRONT_END_ERRORS.inc(front_end="http", error=type(error).__name__)
            return failed(name, error)
        except Exception:
            log.exception("a message ended in a fault")
            return failed(name, Internal("internal error"))
        return None

    async def _cancel(self, name: str, document: Json) -> Json | None:
        """Cancel what runs here under the id, or a stream that runs anywhere."""
        stream_id = take_stream_id(document)
        if stream_id is not None:
            tenant = self._gateway.tenant(self._socket)
            if not await self._gateway.generator.cancel_stream(stream_id, tenant):
                raise NotFound("no such stream runs", field="stream_id")
            return cancelled(name, stream_id)
        run = self._runs.get(name)
        if run is None:
            if name in self._ending:
                return None  # an answer would come before its last message
            raise NotFound(f"nothing runs here under the id {name!r}", field="id")
        last: TandemError = Cancelled("the request was cancelled")
        try:
            if run.end is not None:
                await run.end()
        except TandemError as error:
            last = error  # the stream goes on, and this socket leaves it
        if not run.cancelled.done():
            run.cancelled.set_result(last)
        return None

    async def _begin(self, name: str, kind: str, document: Json, size: int) -> None:
        self._gateway.check_open()
        if name in self._runs:
            raise AlreadyRunning(f"the id {name!r} runs already")
        if len(self._tasks) >= MOST_AT_ONCE:
            message = f"{MOST_AT_ONCE} generations run on this socket, the most there may"
            raise Overloaded(message, retry_after_s=1.0)
        tenant = self._gateway.tenant(self._socket)
        if kind == RESUME:
            run = self._resumed(name, read_resume(document, tenant))
        else:
            run = await self._called(name, kind, document, tenant, size)
        self._runs[name] = run
        task = asyncio.create_task(self._run(name, run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _called(
        self, name: str, kind: str, document: Json, tenant: str, size: int
    ) -> _SocketRun:
        """The run of a new call, which came now."""
        trace, generator = Trace.of(self._socket.headers.get), self._gateway.generator
        request_id = trace.new_id()
        arrived_s = self._gateway.arrived_s
        call = await off_loop(size, lambda: read_call(kind, document, request_id, tenant))
        note = StreamNote.of(kind, call)
        kept = note.text() if call.requests[0].resumable else ""
        requests = [
            replace(one, arrived_s=arrived_s, note=kept, trace=trace) for one in call.requests
        ]
        messages = Messages(name, note, generator, len(requests))
        first, events = requests[0], merge([generator.generate(one) for one in requests])

        async def begin() -> Opened:
            return messages, events

        async def end_it() -> None:
            # It runs in this router, so it ends whatever the other routers answer.
            with suppress(Unavailable, Overloaded):
                await generator.cancel(first.request_id, tenant)

        return _SocketRun(begin, end_it if first.resumable else None)

    def _resumed(self, name: str, request: ResumeRequest) -> _SocketRun:
        """The run of the rest of a stream."""
        generator = self._gateway.generator

        async def begin() -> Opened:
            rest = await resumed(generator, request)
            return Messages(name, rest.note, generator, 1, rest.offsets), merge([rest.events])

        return _SocketRun(
            begin, partial(generator.cancel_stream, request.stream_id, request.tenant)
        )

    async def _run(self, name: str, run: _SocketRun) -> None:
        """Run one generation; the last message tells how it ended."""
        try:
            last = await unless(run.cancelled, self._relay(run))
            if last is None:
                last = failed(name, run.cancelled.result())
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
            del self._runs[name]
        self._ending.append(name)
        try:
            await self._send_last(last)
        finally:
            self._ending.remove(name)

    async def _relay(self, run: _SocketRun) -> Json:
        """Write a generation's messages; returns the last one."""
        messages, events = await run.open()
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
