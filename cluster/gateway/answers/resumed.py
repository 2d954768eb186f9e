"""Takes up a resumable stream again: its form, and the events that the client does not have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from cluster.api import Event, Generator, ResumeRequest, Started, Tokens
from cluster.api.event_streams import closing
from cluster.api.off_loop import write_event
from cluster.api.requests import TokenOffsets
from cluster.gateway.answers.stream_note import StreamNote
from engine.errors import Internal, InvalidRequest, Unavailable

# Bound: the time until the events of a stream begin to come.
BEGIN_S = 10.0


@dataclass(frozen=True, slots=True)
class ResumedAnswer:
    """The rest of a stream, with Started first.

    `offsets` has the offsets of the tokens of each choice, or nothing.
    """

    note: StreamNote
    events: AsyncIterator[Event]
    offsets: tuple[TokenOffsets, ...]


async def resumed(generator: Generator, request: ResumeRequest) -> ResumedAnswer:
    """The rest of a stream, which the caller closes; raises a TandemError."""
    async with _within_bound():
        events, started = await _begin(generator, request)
        try:
            note = StreamNote.read(started.note, started.request_id)
            if len(request.have) > note.n:
                message = f"have must have at most {note.n} choices, not {len(request.have)}"
                raise InvalidRequest(message, field="have")
            offsets: tuple[TokenOffsets, ...] = ()
            if note.has_text_offsets and any(request.have):
                await _close(events)
                offsets = await _offsets(generator, request)
                events, started = await _begin(generator, request)
        except BaseException:
            await _close(events)
            raise
    return ResumedAnswer(note, _with_first(started, events), offsets)


async def reopened(
    generator: Generator, request: ResumeRequest
) -> tuple[Started, AsyncIterator[Event]]:
    """A stream's beginning, and its rest with it, which the caller closes; raises a TandemError."""
    async with _within_bound():
        events, started = await _begin(generator, request)
    return started, _with_first(started, events)


@asynccontextmanager
async def _within_bound() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(BEGIN_S):
            yield
    except TimeoutError:
        message = f"the stream did not begin within {BEGIN_S:g} s"
        raise Unavailable(message, retry_after_s=1.0) from None


async def _begin(
    generator: Generator, request: ResumeRequest
) -> tuple[AsyncIterator[Event], Started]:
    events = generator.resume(request)
    try:
        started = await anext(events)
    except BaseException:
        await _close(events)
        raise
    if not isinstance(started, Started):
        await _close(events)
        raise Internal("a resumed stream has no beginning")
    return events, started


async def _offsets(generator: Generator, request: ResumeRequest) -> tuple[TokenOffsets, ...]:
    """The offsets behind the tokens that the client has, by choice."""
    left, offsets = list(request.have), tuple(generator.offsets() for _ in request.have)

    def count(event: Tokens) -> None:
        ids = event.ids[: left[event.choice]]
        left[event.choice] -= len(ids)
        for token in ids:
            offsets[event.choice].push(token)

    async with closing(generator.resume(replace(request, have=()))) as events:
        async for event in events:
            if isinstance(event, Tokens) and event.choice < len(left):
                await write_event(event, count)
            if not any(left):
                break
    return offsets


async def _with_first(started: Started, events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    async with closing(events):
        yield started
        async for event in events:
            yield event


async def _close(events: AsyncIterator[Event]) -> None:
    async with closing(events):
        pass
