"""The replica's end of the streams from routers: many calls in one stream, one message at a time.

While a message is on its way what comes next is merged, call by call, so a router that reads
slowly gets larger messages and no step ever waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc.aio

from cluster.call_outlets import CallOutlet, Outbound
from cluster.streams import end
from engine.errors import Internal, TandemError, Unavailable
from protos import calls_pb2, calls_pb2_grpc
from protos.calls_pb2 import CallEvent
from protos.outlet import Outlet
from protos.status import failure_to_proto

log = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES = 64 << 20
Serve = Callable[[Any, Outlet], Awaitable[None]]


def new_server() -> grpc.aio.Server:
    """A server for `CallServer` and what else routers and replicas ask of a replica."""
    return grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
            # Routers ping every 10 s, also while a request waits; the default would hang up.
            ("grpc.http2.min_ping_interval_without_data_ms", 5000),
            ("grpc.keepalive_permit_without_calls", 1),
            # A router that was cut off breaks no stream, and its calls would go on for ever.
            ("grpc.keepalive_time_ms", 10_000),
            ("grpc.keepalive_timeout_ms", 5_000),
        ]
    )


class CallServer(calls_pb2_grpc.CallsServicer):
    """Answers `Open`. `serves` has, for each kind of command, the coroutine that is one call."""

    def __init__(self, serves: Mapping[str, Serve]) -> None:
        self._serves = serves
        self._sessions: set[_Session] = set()

    async def Open(self, commands: Any, context: Any) -> None:  # noqa: N802
        """Run the calls of one router until its stream ends; then cancel those that run."""
        session = _Session(self._serves)
        self._sessions.add(session)
        try:
            await session.run(context.read, context.write)
        finally:
            self._sessions.discard(session)

    @property
    def idle(self) -> bool:
        """Whether no call runs and all that calls gave has been sent."""
        return all(session.idle for session in self._sessions)


class _Session:
    """The calls of one router."""

    def __init__(self, serves: Mapping[str, Serve]) -> None:
        self._serves = serves
        self._calls: dict[int, asyncio.Task[TandemError | None]] = {}
        self._outbound = Outbound()
        self._sending = False

    @property
    def idle(self) -> bool:
        return not (self._calls or self._sending) and self._outbound.empty

    async def run(
        self, read: Callable[[], Awaitable[Any]], write: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Take commands and send events until the stream, or either of the two, ends."""
        both = [asyncio.create_task(self._read(read)), asyncio.create_task(self._write(write))]
        try:
            ended, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for one in ended:
                one.result()
        finally:
            await end([*both, *self._calls.values()])

    async def _read(self, read: Callable[[], Awaitable[Any]]) -> None:
        while (message := await read()) is not grpc.aio.EOF:
            for command in message.commands:
                self._obey(command)

    async def _write(self, write: Callable[[Any], Awaitable[None]]) -> None:
        while True:
            events = await self._outbound.next()
            self._sending = True
            await write(calls_pb2.ReplicaMessage(events=events))
            self._sending = False

    def _obey(self, command: calls_pb2.Command) -> None:
        kind = command.WhichOneof("command")
        if kind == "cancel":
            running = self._calls.get(command.call)
            if running is not None:
                running.cancel()
        elif kind is not None:
            outlet = self._outbound.outlet(command.call)
            call = asyncio.create_task(self._run(kind, getattr(command, kind), outlet))
            self._calls[command.call] = call
            call.add_done_callback(lambda done: self._ended(outlet, done))

    async def _run(self, kind: str, request: Any, outlet: CallOutlet) -> TandemError | None:
        """One call to its end; returns what it failed with."""
        try:
            serve = self._serves.get(kind)
            if serve is None:
                raise Unavailable(f"this replica takes no {kind} calls", retry_after_s=1.0)
            await serve(request, outlet)
        except asyncio.CancelledError:
            log.info(f"{kind} cancelled", extra=_names(request))
            raise
        except TandemError as error:
            names = _names(request)
            log.info(
                f"{kind} failed",
                extra=names | {"error": type(error).__name__, "reason": error.message},
            )
            return error
        except Exception as error:
            log.exception("a fault in a %s call", kind, extra=_names(request))
            return Internal(f"internal error: {type(error).__name__}")
        return None

    def _ended(self, outlet: CallOutlet, done: asyncio.Task[TandemError | None]) -> None:
        """Tell the router, also of a call that was cancelled, even before it began."""
        del self._calls[outlet.call]
        failure = None if done.cancelled() else done.result()
        ended = calls_pb2.Ended(failure=None if failure is None else failure_to_proto(failure))
        outlet.put(CallEvent(ended=ended))


def _names(request: Any) -> dict[str, object]:
    return {"request_id": request.request_id, "choice": request.choice}
