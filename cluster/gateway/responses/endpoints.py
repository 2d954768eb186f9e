"""`/v1/responses`: makes responses, and gives responses in the background by their ids.

A response in the background is a resumable stream, so that every router has it. The router that
begins it listens to its end. What a client gets of it is always read from the journal.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cluster.api import Event, GenerateRequest, Generator, ResumeRequest, Started
from cluster.api.event_streams import closing, unless
from cluster.gateway.answers.arrival import RequestArrival
from cluster.gateway.answers.failures import failed, gone, identified
from cluster.gateway.answers.front_end import HttpFrontEnd
from cluster.gateway.answers.resumed import reopened
from cluster.gateway.responses.answer import ResponseAnswer
from cluster.gateway.responses.event_stream import ResponseEvents
from cluster.gateway.responses.field_names import response_fields
from cluster.gateway.responses.note import ResponseNote, stream_id_of
from cluster.gateway.responses.requests import ResponseRequest
from cluster.gateway.sse import EventStream, disconnected, dump, dump_large
from cluster.journal.keys import new_stream_id
from engine.errors import Internal, InvalidRequest, TandemError, shown

log = logging.getLogger(__name__)

# Bound: the time until a response that was cancelled has ended.
_CANCEL_S = 5.0
# Bound: digits of a sequence number.
_DIGITS = 12
_FLAGS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class AskedResponse:
    """A request for a response, and its note."""

    request: GenerateRequest
    note: ResponseNote
    stream: bool

    @classmethod
    def read(cls, body: Any, arrival: RequestArrival) -> AskedResponse:
        """What a JSON document asks for; raises InvalidRequest."""
        found = ResponseRequest.read(body)
        call = found.call(*arrival)
        note = ResponseNote(
            request_id=call.request_id,
            created=int(time.time()),
            echo=found.echo(body),
            stream_id=new_stream_id() if found.background else "",
            logprobs=found.has_logprobs,
            timing=found.timing,
        )
        (request,) = call.requests
        if found.background:
            request = replace(request, resumable=True, note=note.text(), stream_id=note.stream_id)
        return cls(request, note, found.stream)


class ResponseEndpoints:
    """The endpoints of responses."""

    def __init__(self, generator: Generator, front_end: HttpFrontEnd, stall_s: float) -> None:
        self._generator = generator
        self._front_end = front_end
        self._stall_s = stall_s
        # Each listens to a response in the background, whose request the router bounds.
        self._listening: set[asyncio.Task[None]] = set()

    async def create(self, request: Request) -> Response:
        """`POST /v1/responses`."""
        asked = await self._front_end.take(request, AskedResponse.read)
        request.state.request_id = asked.request.request_id
        with response_fields():
            if asked.request.resumable:
                return await self._in_background(request, asked)
            answer = ResponseAnswer(asked.note, self._generator)
            events = self._generator.generate(asked.request)
            if asked.stream:
                return self._streamed(request, answer, events)
            return await self._whole(request, answer, events)

    async def retrieve(self, request: Request) -> Response:
        """`GET /v1/responses/{id}`, with `stream` and `starting_after`."""
        with response_fields():
            tenant = self._front_end.tenant(request)
            stream, after = _stream_options(request.query_params)
            stream_id = stream_id_of(request.path_params["response_id"])
            return await self._given(request, ResumeRequest(stream_id, (), tenant, stream), after)

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/responses/{id}/cancel`. A response that has ended stays as it is."""
        with response_fields():
            tenant = self._front_end.tenant(request)
            stream_id = stream_id_of(request.path_params["response_id"])
            wanted = ResumeRequest(stream_id, (), tenant, follow=False)
            if await self._generator.cancel_stream(stream_id, tenant):
                with suppress(TimeoutError, TandemError):
                    async with asyncio.timeout(_CANCEL_S):
                        await self._to_end(replace(wanted, follow=True))
            return await self._given(request, wanted, -1)

    async def _in_background(self, request: Request, asked: AskedResponse) -> Response:
        """Begin a response, and give it as another router would."""
        if await unless(disconnected(request.receive), self._begin(asked.request)) is None:
            return gone()
        stream_id, tenant = asked.request.stream_id, asked.request.tenant
        try:
            wanted = ResumeRequest(stream_id, (), tenant, asked.stream)
            return await self._given(request, wanted, -1)
        except TandemError:
            # Its client does not learn the id.
            with suppress(TandemError):
                await self._generator.cancel_stream(stream_id, tenant)
            raise

    async def _begin(self, request: GenerateRequest) -> bool:
        """Have a request run, and return True once the journal has it; raises a TandemError."""
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._listen(request, begun))
        self._listening.add(task)
        task.add_done_callback(self._listening.discard)
        try:
            await begun
        except asyncio.CancelledError:
            task.cancel()
            raise
        return True

    async def _listen(self, request: GenerateRequest, begun: asyncio.Future[None]) -> None:
        """Listen to a request, so that it goes on to its end."""
        try:
            async with closing(self._generator.generate(request)) as events:
                async for event in events:
                    if isinstance(event, Started) and not begun.done():
                        begun.set_result(None)
            if not begun.done():
                raise Internal("a response has no beginning")
        except Exception as error:
            if not begun.done():
                begun.set_exception(error)
            elif not isinstance(error, TandemError):
                log.exception("a response ended in a fault")

    async def _given(self, request: Request, wanted: ResumeRequest, after: int) -> Response:
        """A response in the background: its stream, or without `follow` what there is now."""
        opening = reopened(self._generator, wanted)
        found = await unless(disconnected(request.receive), opening)
        if found is None:
            return gone()
        started, events = found
        try:
            note = ResponseNote.read(started.note, wanted.stream_id)
        except TandemError:
            async with closing(events):
                raise
        request.state.request_id = note.request_id
        answer = ResponseAnswer(note, self._generator)
        if wanted.follow:
            return self._streamed(request, answer, events, after)
        return await self._whole(request, answer, events)

    async def _to_end(self, wanted: ResumeRequest) -> None:
        _, events = await reopened(self._generator, wanted)
        async with closing(events):
            async for _ in events:
                pass

    def _streamed(
        self,
        request: Request,
        answer: ResponseAnswer,
        events: AsyncIterator[Event],
        after: int = -1,
    ) -> Response:
        written = ResponseEvents(answer, after).events(events)
        return EventStream(written, identified(request), self._stall_s, partial(failed, request))

    async def _whole(
        self, request: Request, answer: ResponseAnswer, events: AsyncIterator[Event]
    ) -> Response:
        whole = await unless(disconnected(request.receive), _collected(answer, events))
        if whole is None:
            return gone()
        return Response(whole, 200, identified(request), "application/json")


async def _collected(answer: ResponseAnswer, events: AsyncIterator[Event]) -> bytes:
    """The response as JSON, as far as its events go; raises a TandemError."""
    try:
        async with closing(events):
            async for event in events:
                answer.take(event)
        if not answer.in_background:
            answer.check()
    except TandemError as error:
        if not error.ended_stream:
            raise
        answer.failed(error)
    if answer.is_large:
        return await asyncio.to_thread(lambda: dump_large(answer.document()))
    return dump(answer.document())


def _stream_options(given: Mapping[str, str]) -> tuple[bool, int]:
    """Whether the rest is to be streamed, and behind which sequence number; InvalidRequest."""
    stream = _FLAGS.get(given.get("stream", "false"))
    if stream is None:
        message = f"stream must be true or false, not {shown(given['stream'])}"
        raise InvalidRequest(message, field="stream")
    after = given.get("starting_after")
    if after is None:
        return stream, -1
    field = "starting_after"
    if not stream:
        raise InvalidRequest(f"{field} is allowed with stream only", field=field)
    if not (after.isascii() and after.isdecimal() and len(after) <= _DIGITS):
        raise InvalidRequest(f"{field} must be a sequence number, not {shown(after)}", field=field)
    return stream, int(after)
