"""The replica's end of the streams from routers: many calls in one stream, one message at a time.

While a message is on its way, the next events are merged, call by call. So a router that reads
slowly gets larger messages, and no step ever waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from google.protobuf.message import DecodeError

from cluster.api.event_streams import end
from cluster.rpc.send_queue import CallQueue, SendQueue
from engine.errors import Internal, InvalidRequest, Overloaded, TandemError, Unavailable
from protos.calls_pb2 import CallEvent, Command, Ended, ReplicaMessage, RouterMessage
from protos.event_sink import EventSink
from protos.shared_prompt import SharedPrompt
from protos.status import failure_to_proto
from protos.wire.framing import SILENT_TICKS, TICK_S, Wire

log = logging.getLogger(__name__)

_STOP_S = 5.0
# Bound: the longest time in which a replica writes nothing to a router. So a router tells a cut
# connection from a replica without news. The router's own signs of life come every 5 s.
BEAT_S = 0.5
_SILENT_BEATS = round(SILENT_TICKS * TICK_S / BEAT_S)
# Bounds: routers at a time, and calls of one router at a time.
_MOST_SESSIONS = 1024
_MOST_CALLS = 1 << 16
# Bound: prompts of one router. Each call may have its own, and calls that were refused keep theirs
# until the router has heard of the refusal.
_MOST_PROMPTS = 2 * _MOST_CALLS
Serve = Callable[[Any, SharedPrompt, EventSink], Awaitable[None]]


class CallServer:
    """Serves the connections of routers.

    `serves` has, for each kind of command, the coroutine function that serves one call.
    """

    def __init__(self, serves: Mapping[str, Serve]) -> None:
        self._serves = serves
        self._sessions: set[_RouterSession] = set()

    def accept(self) -> Wire | None:
        """The protocol of a router's new connection; None at the bound."""
        if len(self._sessions) >= _MOST_SESSIONS:
            return None
        session = _RouterSession(self._serves, self._sessions.discard)
        self._sessions.add(session)
        return session.wire

    async def stop(self) -> None:
        """Cancel all calls, and wait for their end, for 5 s at most. Idempotent."""
        sessions = list(self._sessions)
        for session in sessions:
            session.wire.close("the replica stops")
        ends = [asyncio.ensure_future(session.over.wait()) for session in sessions]
        if ends:
            _, late = await asyncio.wait(ends, timeout=_STOP_S)
            await end(list(late))
            if late:
                log.warning("calls did not end", extra={"connections": len(late)})

    @property
    def sessions(self) -> int:
        """Connections of routers that are open."""
        return len(self._sessions)

    @property
    def idle(self) -> bool:
        """Whether no call runs, and all events of calls have been sent."""
        return all(session.idle for session in self._sessions)


class _RouterSession:
    """The calls of one router. Running calls are cancelled when its connection ends."""

    def __init__(
        self, serves: Mapping[str, Serve], ended: Callable[[_RouterSession], None]
    ) -> None:
        self.wire = Wire(self.take, self.lost, tick_s=BEAT_S, silent_ticks=_SILENT_BEATS)
        self.over = asyncio.Event()
        self._serves = serves
        self._on_end = ended
        self._calls: dict[int, asyncio.Task[TandemError | None]] = {}
        self._prompts: dict[int, SharedPrompt] = {}
        self._queue = SendQueue()
        self._sending = False
        self._writing = asyncio.create_task(self._write())
        self._ending: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        sent = self._queue.empty and not (self._sending or self.wire.unsent)
        return sent and not self._calls

    def take(self, message: bytes) -> None:
        """Carry out a message of the router."""
        try:
            commands = RouterMessage.FromString(message).commands
        except DecodeError:
            self.wire.close("a message that cannot be read")
            return
        for command in commands:
            self._obey(command)

    def lost(self, reason: str) -> None:
        """Note that the router has gone: its calls are cancelled."""
        log.debug("a router's connection ended", extra={"reason": reason})
        self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        await end([self._writing, *self._calls.values()])
        self._on_end(self)
        self.over.set()

    async def _write(self) -> None:
        try:
            while True:
                events = await self._queue.next()
                self._sending = True
                self.wire.send(ReplicaMessage(events=events).SerializeToString())
                await self.wire.drained()
                self._sending = False
        except Exception:
            log.exception("the events of calls could not be sent")
            self.wire.close("a fault")

    def _obey(self, command: Command) -> None:
        kind = command.WhichOneof("command")
        if kind == "cancel":
            running = self._calls.get(command.call)
            if running is not None:
                running.cancel()
        elif kind == "prompt":
            self._keep(command)
        elif kind == "forget":
            self._prompts.pop(command.call, None)
        elif kind is not None and command.call in self._calls:
            self.wire.close("a call began twice")
        elif kind is not None:
            self._begin(kind, command.call, getattr(command, kind))

    def _keep(self, command: Command) -> None:
        if len(self._prompts) >= _MOST_PROMPTS:
            self.wire.close(f"more than {_MOST_PROMPTS} prompts")
            return
        try:
            self._prompts[command.call] = SharedPrompt.read(command.prompt)
        except (DecodeError, InvalidRequest):
            self.wire.close("a prompt that cannot be read")

    def _begin(self, kind: str, number: int, request: Any) -> None:
        prompt = self._prompts.get(request.prompt)
        if prompt is None:
            self.wire.close("a call without its prompt")
            return
        queue = self._queue.queue(number)
        if len(self._calls) >= _MOST_CALLS:
            full = Overloaded(f"{_MOST_CALLS} calls of this router run", retry_after_s=1.0)
            queue.put(CallEvent(ended=Ended(failure=failure_to_proto(full))))
            return
        call = asyncio.create_task(self._run(kind, request, prompt, queue))
        self._calls[number] = call
        call.add_done_callback(lambda done: self._ended(queue, done))

    async def _run(
        self, kind: str, request: Any, prompt: SharedPrompt, queue: CallQueue
    ) -> TandemError | None:
        """Serve one call to its end; returns its error, if it failed."""
        try:
            serve = self._serves.get(kind)
            if serve is None:
                raise Unavailable(f"this replica takes no {kind} calls", retry_after_s=1.0)
            await serve(request, prompt, queue)
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

    def _ended(self, queue: CallQueue, done: asyncio.Task[TandemError | None]) -> None:
        """Tell the router that a call has ended, also if it was cancelled before it began."""
        del self._calls[queue.call]
        failure = None if done.cancelled() else done.result()
        ended = Ended(failure=None if failure is None else failure_to_proto(failure))
        queue.put(CallEvent(ended=ended))


def _names(request: Any) -> dict[str, object]:
    named = {"request_id": request.request_id, "choice": request.choice}
    return named | {"traceparent": request.traceparent} if request.traceparent else named
