"""The writer of a router: one loop that appends the entries of all its streams to the journal.

At most one call is under way. What comes meanwhile is gathered for the next one. Where a call fails
or is late, all streams are suspended: their events are handed on at once. They are written when
Redis is back. The loop also renews the router's lease, without which others may take its streams.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from cluster.journal.appender import BatchAppender
from cluster.journal.batches import Appended, NewStream
from cluster.journal.entries import JournalEntry
from cluster.journal.store import JournalStore, TakeOver
from cluster.journal.stream import JournaledStream, OnEvent
from engine.errors import Unavailable
from engine.kv.prefix_digest import DEFAULT_TENANT
from protos.journal_pb2 import JournaledRequest

log = logging.getLogger(__name__)

_BEAT_S = 0.3
_RETRY_S = 0.2
# Entries wait so long for others. First tokens do not wait.
_PACE_S = 0.01
# Bound: what one call carries.
_BATCH_BYTES = 256 << 10
# A timer that fires so late says that this process stood still, and nothing about Redis.
_STOOD_STILL_S = 0.05
# Bound: calls in a row that are tried again for that reason.
_EXCUSES = 2


class JournalWriter:
    """Writes the streams of one router. `router` names it; no two routers share a name.

    `on_cancel` is called with the id of a stream that another router was told to cancel.
    """

    def __init__(self, store: JournalStore, router: str, on_cancel: Callable[[str], None]) -> None:
        self._store = store
        self._router = router
        self._on_cancel = on_cancel
        self._streams: dict[str, JournaledStream] = {}
        # Streams with a first token, with something else to write, and with a backlog, in order.
        self._first: deque[JournaledStream] = deque()
        self._ready: deque[JournaledStream] = deque()
        self._backlog: deque[JournaledStream] = deque()
        self._ended_s: dict[str, float] = {}
        self._taking: set[str] = set()
        # Streams that this router took and did not adopt.
        self._unused: set[str] = set()
        self._epoch: str | None = None
        self._appender = BatchAppender(store, router)
        self._suspended = True
        self._loop = asyncio.get_running_loop()
        self._well_since_s = self._beat_due_s = self._paced_s = self._loop.time()
        self._pacing = False
        self._excuses = 0
        self._waiting: asyncio.Future[None] | None = None

    @property
    def suspended(self) -> bool:
        """Whether Redis is away, so that no stream can be resumed."""
        return self._suspended

    def open(
        self,
        stream_id: str,
        request: JournaledRequest,
        on_event: OnEvent,
        on_lost: Callable[[], None],
    ) -> JournaledStream:
        """A new stream. Its request is written with its first token, or after a moment.

        `on_event` gets each event once Redis has it. `on_lost` is called where another router took
        the stream over; then no event follows.
        """
        stream = self._add(stream_id, 1, request, on_event, on_lost, None)
        self._loop.call_later(_PACE_S, stream.begin)
        return stream

    def adopt(
        self,
        stream_id: str,
        fence: int,
        request: JournaledRequest,
        entries: Sequence[JournalEntry],
        on_event: OnEvent,
        on_lost: Callable[[], None],
    ) -> JournaledStream:
        """A stream that was taken over with that fence, and has these entries already."""
        sealed = [entry.sealed for entry in entries]
        return self._add(stream_id, fence, request, on_event, on_lost, sealed)

    @asynccontextmanager
    async def taking(self, stream_id: str) -> AsyncIterator[TakeOver]:
        """Take a stream from a dead owner. A stream that was `taken` is adopted inside the block.

        Otherwise any router can take it again. A stream of this router is `held`. For the time of
        a lease after Redis came back all streams are: no owner could renew its lease. Raises
        Unavailable while Redis is away.
        """
        if self._suspended:
            raise Unavailable("Redis (directory.url) is away: no stream can be resumed")
        held = stream_id in self._streams or stream_id in self._taking
        if held or self._loop.time() - self._well_since_s < self._store.lease_s:
            yield TakeOver("held")
            return
        self._taking.add(stream_id)
        outcome = ""
        try:
            taken = await self._store.take_over(stream_id, self._router)
            outcome = taken.outcome
            yield taken
        finally:
            self._taking.discard(stream_id)
            # Without an answer the stream may be taken.
            if outcome in ("", "taken") and stream_id not in self._streams:
                self._unused.add(stream_id)

    def watch(self, stream_id: str, woken: asyncio.Event) -> Callable[[], None] | None:
        """Set the event after each write to a stream of this router; returns what ends that."""
        stream = self._streams.get(stream_id)
        return None if stream is None else stream.watch(woken)

    async def run(self) -> None:
        """Write, and renew the lease, until cancelled."""
        while True:
            await self._wait()
            began_s = self._loop.time()
            try:
                if began_s >= self._beat_due_s:
                    await self._beat()
                    began_s = self._loop.time()
                if self._first or self._ready or self._backlog:
                    await self._flush()
                self._excuses = 0
            except Unavailable as error:
                late_s = self._loop.time() - began_s - self._store.timeout_s
                self._excuses += 1
                if late_s < _STOOD_STILL_S or self._excuses > _EXCUSES:
                    self._fail(error.message)
            except Exception as error:
                log.exception("the journal failed")
                self._fail(type(error).__name__)

    async def leave(self) -> None:
        """Let other routers take the streams over at once; for a router that ends."""
        await self._store.leave(self._router)

    def _add(
        self,
        stream_id: str,
        fence: int,
        request: JournaledRequest,
        on_event: OnEvent,
        on_lost: Callable[[], None],
        entries: Sequence[bytes] | None,
    ) -> JournaledStream:
        sealed = self._store.seal.sealed_request(stream_id, request)
        tenant = request.request.tenant or DEFAULT_TENANT
        new = NewStream(sealed, tenant.encode(), request.arrived_at)
        seal = self._store.seal.entries(stream_id)
        stream = JournaledStream(
            stream_id, fence, seal, new, on_event, on_lost, self._wake, entries
        )
        self._streams[stream_id] = stream
        if self._suspended:
            stream.suspend()
        return stream

    def _wake(self, stream: JournaledStream, urgent: bool) -> None:
        queue = self._first if urgent else self._backlog if stream.suspended else self._ready
        if urgent or not stream.ready:
            stream.ready = True
            queue.append(stream)
        if self._waiting is None or self._suspended:
            return
        if urgent:
            self._rouse()
        elif not self._pacing:
            self._pacing = True
            self._loop.call_at(self._paced_s, self._rouse)

    def _rouse(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _wait(self) -> None:
        """Wait until there is something to write, or the lease is to be renewed."""
        due_s = self._beat_due_s
        if not self._suspended and (self._first or self._ready or self._backlog):
            due_s = min(due_s, 0.0 if self._first else self._paced_s)
        if due_s <= self._loop.time():
            await asyncio.sleep(0)
            return
        self._waiting, self._pacing = self._loop.create_future(), False
        timer = self._loop.call_at(due_s, self._rouse)
        try:
            await self._waiting
        finally:
            timer.cancel()
            self._waiting = None

    async def _beat(self) -> None:
        """Renew the lease and take orders; where Redis is back, write the backlog."""
        epoch, orders = await self._store.beat(self._router, secrets.token_hex(8))
        now = self._loop.time()
        self._beat_due_s = now + _BEAT_S
        if epoch != self._epoch:
            self._epoch = epoch
            for stream in list(self._streams.values()):
                stream.suspend()
                stream.restart()
        if self._suspended:
            self._suspended, self._well_since_s = False, now
            log.info("streams are journaled", extra={"streams": len(self._streams)})
        for stream in self._streams.values():
            if stream.suspended:
                self._wake(stream, False)
        for order in self._streams.keys() & orders:
            self._cancel(self._streams[order])
        for stream_id in list(self._unused):
            if not (stream_id in self._taking or stream_id in self._streams):
                await self._store.release(stream_id, self._router)
                self._unused.discard(stream_id)

    async def _flush(self) -> None:
        """Append what the streams have, in one call; only first tokens until others are due."""
        if not self._appender.sure:
            for stream in self._streams.values():
                stream.checked = False
        taken, parts, size = [], [], 0
        early = bool(self._first) and self._loop.time() < self._paced_s
        while size < _BATCH_BYTES and (
            queue := self._first if early else self._first or self._ready or self._backlog
        ):
            stream = queue.popleft()
            stream.ready = False
            # A suspended stream without a backlog asks whether it is still this router's.
            if stream.pending or stream.suspended:
                taken.append(stream)
                parts.append(stream.gather(_BATCH_BYTES - size))
                size += len(parts[-1])
        assert self._epoch is not None
        answers: list[Appended] | None = None
        try:
            answers = await self._appender.append(self._epoch, parts) if parts else []
        finally:
            if answers is None:
                for stream in taken:
                    self._wake(stream, True)
        if not early:
            self._paced_s = self._loop.time() + _PACE_S
        if answers is None:
            self._beat_due_s = self._loop.time()
            return
        for stream, answer in zip(taken, answers, strict=True):
            stream.answered(answer)
            if answer is Appended.CANCELLED:
                self._cancel(stream)
            if stream.over:
                self._forget(stream)
            elif stream.pending:
                self._wake(stream, False)

    def _fail(self, reason: str) -> None:
        """Suspend all streams, and try again in a while."""
        now = self._loop.time()
        self._beat_due_s = now + _RETRY_S
        if not self._suspended:
            self._suspended = True
            log.warning("streams are not journaled", extra={"reason": reason})
        for queue in (self._first, self._ready, self._backlog):
            queue.clear()
        for stream in list(self._streams.values()):
            stream.ready = False
            stream.suspend()
            if stream.closed:
                ended_s = self._ended_s.setdefault(stream.stream_id, now)
                if now - ended_s > self._store.life.keep_s:
                    self._forget(stream)

    def _cancel(self, stream: JournaledStream) -> None:
        if not stream.cancelled:
            stream.cancelled = True
            self._on_cancel(stream.stream_id)

    def _forget(self, stream: JournaledStream) -> None:
        stream.drop()
        self._ended_s.pop(stream.stream_id, None)
        if self._streams.get(stream.stream_id) is stream:
            del self._streams[stream.stream_id]
