"""A journal of resumable streams in memory: one entry for each event, for any number of routers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

from cluster.api import Event, ResumeRequest, Started, Summary, Tokens
from engine.errors import Cancelled, InvalidRequest, NotFound, TandemError


@dataclass
class ScriptedStream:
    """One request, which goes on whether somebody follows it or not."""

    tenant: str
    note: str
    started: Started | None = None
    entries: list[Tokens | Summary] = field(default_factory=list)
    error: TandemError | None = None
    ended: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def end_with(self, error: TandemError) -> None:
        if not self.ended:
            self.error, self.ended = error, True
        if self.task is not None:
            self.task.cancel()
        self.tell()


@dataclass
class ScriptedJournal:
    """The streams by id. `followers` counts the connections that follow one now."""

    streams: dict[str, ScriptedStream] = field(default_factory=dict)
    resumed: list[ResumeRequest] = field(default_factory=list)
    followers: int = 0
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def open(self, tenant: str, note: str, stream_id: str = "") -> tuple[str, ScriptedStream]:
        stream_id = stream_id or f"stream-{next(self.numbers)}"
        self.streams[stream_id] = ScriptedStream(tenant, note)
        return stream_id, self.streams[stream_id]

    def stream(self, stream_id: str, tenant: str) -> ScriptedStream:
        found = self.streams.get(stream_id)
        if found is None or found.tenant != tenant:
            raise NotFound("no such stream", field="stream_id")
        return found

    async def fill(self, stream_id: str, events: AsyncIterator[Event]) -> None:
        """Keep the events of a request; what is no entry is dropped."""
        stream = self.streams[stream_id]
        try:
            async for event in events:
                if isinstance(event, Started):
                    stream.started = replace(event, stream_id=stream_id)
                elif isinstance(event, Tokens | Summary):
                    stream.entries.append(event)
                stream.tell()
        except TandemError as error:
            stream.error = error
        finally:
            stream.ended = True
            stream.tell()

    async def follow(
        self, stream_id: str, have: Sequence[int], again: bool, on: bool = True
    ) -> AsyncIterator[Event]:
        """Started, and the entries behind the cursor."""
        stream = self.streams[stream_id]
        at, left = 0, dict(enumerate(have))
        self.followers += 1
        try:
            while stream.started is None:
                await self._more(stream)
            if again:
                _check(stream, have)
            yield replace(stream.started, note=stream.note if again else "")
            while True:
                while at < len(stream.entries):
                    entry = stream.entries[at]
                    at += 1
                    if not isinstance(entry, Tokens) or entry.index >= left.get(entry.choice, 0):
                        yield entry
                    if isinstance(entry, Summary):
                        return
                if not on and not stream.ended:
                    return
                await self._more(stream)
        finally:
            self.followers -= 1

    async def _more(self, stream: ScriptedStream) -> None:
        if stream.ended:
            error = stream.error or Cancelled("the request was cancelled")
            error.ended_stream = True
            raise error
        await stream.changed.wait()


def _check(stream: ScriptedStream, have: Sequence[int]) -> None:
    bounds: dict[int, set[int]] = {}
    for entry in stream.entries:
        if isinstance(entry, Tokens):
            bounds.setdefault(entry.choice, {0}).add(entry.index + len(entry.ids))
    for choice, count in enumerate(have):
        if count not in bounds.get(choice, {0}):
            raise InvalidRequest(f"have[{choice}] is no end of an event", field="have")
