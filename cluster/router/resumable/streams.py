"""Resumable streams: requests that outlive their connection, and the router that runs them.

The router that runs a request owns its stream. It writes each event to the journal before a client
gets it. A client that comes back, to any router, reads the journal. Where the owner is dead, the
router that the client came to becomes the owner and goes on with the request.

    opened ──▶ a client listens ◀──▶ nobody listens ──▶ cancelled after `detached_s`
       └── the request ends, or another router takes the stream over: at any point
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from cluster.api import Event, GenerateRequest, ResumeRequest, Started, Summary, TokenPrompt, Tokens
from cluster.api.event_streams import closing, end
from cluster.config.journal import JournalConfig
from cluster.journal.bounds import JournalBounds
from cluster.journal.cursor import Cursor
from cluster.journal.entries import journaled_request
from cluster.journal.keys import new_stream_id
from cluster.journal.rebuild import rebuilt
from cluster.journal.store import JournalStore, StoredStream
from cluster.journal.stream import JournaledStream
from cluster.journal.tail import LISTENING_S, JournalTail, StreamOrphaned
from cluster.journal.writer import JournalWriter
from cluster.parsing.answer_parser import AnswerReader
from cluster.router.event_buffer import EventBuffer
from cluster.router.phases import EmitOf
from cluster.router.resumable.progress import emit_to
from cluster.router.resumable.readers import Readers
from cluster.router.resumable.takeover import StreamRunner, StreamTakeover, size_of
from cluster.router.resume_state import PreparedRequest
from cluster.router.running_requests import RunningRequest
from cluster.telemetry import router_metrics as metrics
from engine.errors import Cancelled, Internal, TandemError, Unavailable

log = logging.getLogger(__name__)

# How often it is asked whether somebody listens on another router.
_LISTENERS_POLL_S = 5.0


@dataclass(frozen=True, slots=True)
class Journal:
    """What a router needs for resumable streams: the store, and its own name there.

    No two routers share a `name`. `model_identity` names the weights. At most `most_readers`
    clients read resumed streams at a time.
    """

    config: JournalConfig
    store: JournalStore
    name: str
    model_identity: str
    most_readers: int


class ResumableStreams:
    """The resumable streams of one router, and the way to those of others.

    `runner` runs what is taken over.
    """

    def __init__(self, journal: Journal, runner: StreamRunner) -> None:
        self._config = journal.config
        self._store = journal.store
        self._identity = journal.model_identity
        self._runner = runner
        self._bounds = JournalBounds(journal.config)
        # The request behind each stream; None while the stream is taken over.
        self._owned: dict[str, RunningRequest | None] = {}
        self._readers = Readers(journal.most_readers)
        self._writer = JournalWriter(journal.store, journal.name, self._stop)
        self._writing = asyncio.create_task(self._writer.run(), name=f"journal of {journal.name}")
        self._takeover = StreamTakeover(
            self._store, self._writer, self._bounds, self._owned, self._identity, runner
        )

    def open(
        self,
        request: GenerateRequest,
        prepared: PreparedRequest,
        started: Started,
        running: RunningRequest,
    ) -> EmitOf:
        """Open the stream of a request that begins here, and say where its events go.

        Raises InvalidRequest for a request that is too large for the journal, and Overloaded where
        the journal is full.
        """
        stream_id = request.stream_id or new_stream_id()
        started = replace(started, stream_id=stream_id)
        complete = replace(
            request,
            request_id=prepared.request_id,
            prompt=TokenPrompt(prepared.prompt_ids),
            sampling=prepared.sampling,
        )
        admitted_s = time.monotonic() - running.account.began_s
        arrived_at = time.time() - admitted_s
        record = journaled_request(complete, started, arrived_at, self._identity, admitted_s)
        self._bounds.reserve(stream_id, size_of(record), time.monotonic())
        self._owned[stream_id] = running
        running.on_end = self._closed
        running.stream = self._writer.open(stream_id, record, running.events.put, running.lost)
        running.stream.put(started)
        return emit_to(running.stream)

    async def resume(self, request: ResumeRequest, tenant: str | None) -> AsyncIterator[Event]:
        """The rest of a stream of the tenant, or with None of any; as in `Generator.resume`."""
        with self._readers.one_of(request.tenant):
            async with closing(self._rest(request, tenant)) as events:
                async for event in events:
                    yield event

    async def _rest(self, request: ResumeRequest, tenant: str | None) -> AsyncIterator[Event]:
        stored = await self._store.find(request.stream_id, tenant)
        cursor = Cursor(request.have, stored.record.request.n or 1)
        tail = JournalTail(
            self._store, stored.stream_id, cursor, self._writer.watch, follow=request.follow
        )
        started = rebuilt(stored.record, ()).started
        answers = AnswerReader(started.form)
        await tail.find(answers.tokens)
        metrics.RESUMED.inc()
        if not request.follow:
            yield started
            async with closing(self._events(stored, tail)) as found:
                async for one in found:
                    yield answers.take(one)
            return
        events = EventBuffer()
        reading = asyncio.create_task(self._read(stored, tail, events))
        try:
            yield started
            while True:
                event = await events.get()
                if isinstance(event, TandemError):
                    raise event
                yield answers.take(event)
                if isinstance(event, Summary):
                    return
        finally:
            events.close()
            await end([reading])

    async def cancel(self, stream_id: str, tenant: str | None) -> bool:
        """Have the owner of a stream of the tenant, or of any, cancel it; False for none."""
        return await self._store.cancel(stream_id, tenant)

    async def forget(self, tenant: str) -> int:
        """Remove a tenant's streams from the journal, running ones too; returns their number."""
        return await self._store.forget_tenant(tenant)

    async def outlive(self, running: RunningRequest) -> None:
        """Wait until the request has ended, or until nobody has listened for `detached_s`.

        Then the request is to be cancelled. Its client learns why if it comes back.
        """
        stream, task = running.stream, running.task
        assert stream is not None and task is not None
        heard_s, most_s = time.monotonic(), self._config.detached_s
        while not task.done():
            with suppress(Unavailable):
                ago_s = await self._store.listened_ago_s(stream.stream_id)
                if ago_s is not None:
                    heard_s = max(heard_s, time.monotonic() - max(0.0, ago_s - 2 * LISTENING_S))
            alone_s = time.monotonic() - heard_s
            if alone_s >= most_s:
                running.cancel(Cancelled(f"no client listened for {most_s:g} s"))
                return
            await asyncio.wait([task], timeout=min(most_s - alone_s, _LISTENERS_POLL_S))

    async def leave(self) -> None:
        """Write no more, and let other routers go on with the streams of this one."""
        await end([self._writing])
        with suppress(Unavailable):
            await self._writer.leave()

    async def close(self) -> None:
        """Close the connections to the journal."""
        await self._store.close()

    def _stop(self, stream_id: str) -> None:
        """End the request behind a stream, as another router was asked to."""
        running = self._owned.get(stream_id)
        if running is not None:
            running.cancel(Cancelled("the request was cancelled"))

    def _closed(self, stream: JournaledStream) -> None:
        """Note that nothing runs behind a stream here any more."""
        self._owned.pop(stream.stream_id, None)
        self._bounds.ended(stream.stream_id, time.monotonic())

    async def _events(
        self, stored: StoredStream, tail: JournalTail
    ) -> AsyncIterator[Tokens | Summary]:
        """What the client lacks; this router goes on with a stream whose owner is dead."""
        while True:
            try:
                async for event in tail.events():
                    yield event
                return
            except StreamOrphaned:
                running = await self._takeover.claim(stored)
            if running is not None:
                running.on_end = self._closed
                self._runner.detach(running, partial(self.outlive, running))

    async def _read(self, stored: StoredStream, tail: JournalTail, events: EventBuffer) -> None:
        """Move what the client lacks from the journal to `events`, to the end of the stream."""
        try:
            async with closing(self._events(stored, tail)) as found:
                async for event in found:
                    events.put(event)
        except TandemError as error:
            events.put(error)
        except Exception as error:
            log.exception("a stream could not be resumed", extra={"stream": stored.stream_id})
            events.put(Internal(f"internal error: {type(error).__name__}"))
