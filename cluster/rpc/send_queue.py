"""The send queue of a replica: events in order per call, tokens merged until they leave."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field

from protos.calls_pb2 import CallEvent
from protos.event_sink import Collect

# Tokens that are due within the same few milliseconds leave together.
_GRID_S = 0.005
# A message is closed at this size; a router that did not read for a while has more to come.
_MESSAGE_BYTES = 1 << 20


class SendQueue:
    """The events of all calls to one router. `next` gives the events that may leave now."""

    def __init__(self) -> None:
        # In the order in which they leave; dicts for their keys. Queues with single events come
        # first, so that a first token never waits behind the tokens of many streams.
        self._urgent: dict[CallQueue, None] = {}
        self._ready: dict[CallQueue, None] = {}
        self._delayed: dict[int, list[CallQueue]] = {}
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to send, not even later."""
        return not (self.due or self._delayed)

    @property
    def due(self) -> bool:
        """Whether there is something to send now."""
        return bool(self._urgent or self._ready)

    def queue(self, call: int) -> CallQueue:
        """The queue of a new call."""
        return CallQueue(call, self)

    async def next(self) -> list[CallEvent]:
        """All events that are due, once there are any."""
        events: list[CallEvent] = []
        while not events:
            await self._wake.wait()
            self._wake.clear()
            self._gather(events)
        return events

    def release(self, queue: CallQueue, urgent: bool = False) -> None:
        """Send the events of the queue with the next message."""
        (self._urgent if urgent else self._ready)[queue] = None
        self._wake.set()

    def delay(self, queue: CallQueue, due_s: float) -> None:
        """Send the events of the queue at `due_s`, a few milliseconds earlier at most."""
        slot = queue.slot = math.floor(due_s / _GRID_S)
        waiting = self._delayed.get(slot)
        if waiting is not None:
            waiting.append(queue)
            return
        self._delayed[slot] = [queue]
        self._loop.call_later(max(0.0, slot * _GRID_S - time.monotonic()), self._due, slot)

    def _due(self, slot: int) -> None:
        for queue in self._delayed.pop(slot):
            # The queue may have been sent meanwhile, and be delayed again until later.
            if queue.slot == slot:
                self.release(queue)

    def _gather(self, events: list[CallEvent]) -> None:
        left_bytes = _MESSAGE_BYTES
        for leaving in (self._urgent, self._ready):
            while leaving and left_bytes > 0:
                queue = next(iter(leaving))
                del leaving[queue]
                for event in queue.leave():
                    events.append(event)
                    left_bytes -= event.ByteSize()
        if self.due:
            self._wake.set()


@dataclass(slots=True, eq=False)
class CallQueue:
    """The events of one call; implements `protos.event_sink.EventSink`.

    `slot` is when its tokens are due, while they are delayed.
    """

    call: int
    _queue: SendQueue
    slot: int | None = None
    _collect: Collect | None = None
    _events: list[CallEvent] = field(default_factory=list)
    _due_s: float = math.inf

    def put(self, event: CallEvent) -> None:
        """Send the event, and the tokens before it, with the next message."""
        self._take_tokens()
        event.call = self.call
        self._events.append(event)
        self._queue.release(self, urgent=True)

    def ready(self, collect: Collect, due_s: float = 0.0) -> None:
        """Send the event of `collect` once it is due."""
        self._collect = collect
        if due_s >= self._due_s:
            return
        self._due_s = due_s
        if due_s <= time.monotonic():
            self._queue.release(self)
        else:
            self._queue.delay(self, due_s)

    def leave(self) -> list[CallEvent]:
        """Take all events out of the queue."""
        self._take_tokens()
        leaving, self._events = self._events, []
        return leaving

    def _take_tokens(self) -> None:
        if self._collect is None:
            return
        event = self._collect()
        self._collect, self._due_s, self.slot = None, math.inf, None
        if event is not None:
            event.call = self.call
            self._events.append(event)
