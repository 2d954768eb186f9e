"""`/v1/streams`: the rest of a resumable stream as server-sent events, and its end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from cluster.api import Generator, ResumeRequest
from cluster.api.event_streams import merge, unless
from cluster.api.tracing import REQUEST_ID, Trace
from cluster.api.validation import check_stream_id
from cluster.gateway.answers.chunk_stream import ChunkStream
from cluster.gateway.answers.failures import gone
from cluster.gateway.answers.resumed import resumed
from cluster.gateway.answers.stream_cursor import LAST_EVENT_ID, StreamCursor, read_counts
from cluster.gateway.sse import EventStream, disconnected, dump
from engine.errors import InvalidRequest, NotFound

STREAM_HEADER = "x-stream-id"


class StreamEndpoints:
    """The endpoints of resumable streams.

    `tenant` is that of a request; `failed` makes the answer to a request that failed.
    """

    def __init__(
        self,
        generator: Generator,
        stall_s: float,
        tenant: Callable[[Request], str],
        failed: Callable[[Request, Exception], Response],
    ) -> None:
        self._generator = generator
        self._stall_s = stall_s
        self._tenant = tenant
        self._failed = failed

    async def answer(self, request: Request) -> Response:
        """`GET` and `DELETE` of `/v1/streams/{id}`, and `GET` of `/v1/streams`."""
        tenant = self._tenant(request)
        if request.method == "DELETE":
            return await self._cancel(check_stream_id(request.path_params["stream_id"]), tenant)
        cursor = _cursor(request)
        wanted = ResumeRequest(cursor.stream_id, tuple(cursor.have), tenant)
        rest = await unless(disconnected(request.receive), resumed(self._generator, wanted))
        if rest is None:
            return gone()
        request.state.request_id = rest.note.request_id
        chunks = ChunkStream(rest.note, self._generator, 1, cursor, rest.offsets)
        name = Trace.of(request.headers.get).request_id or rest.note.request_id
        headers = {REQUEST_ID: name, STREAM_HEADER: cursor.stream_id}
        events = chunks.events(merge([rest.events]))
        return EventStream(events, headers, self._stall_s, partial(self._failed, request))

    async def _cancel(self, stream_id: str, tenant: str) -> Response:
        if not await self._generator.cancel_stream(stream_id, tenant):
            raise NotFound("no such stream runs", field="stream_id")
        document = {"id": stream_id, "object": "stream", "cancelled": True}
        return Response(dump(document), media_type="application/json")


def _cursor(request: Request) -> StreamCursor:
    """What the client has: by `Last-Event-ID`, or by the path and `have`; raises InvalidRequest."""
    stream_id, have = request.path_params.get("stream_id"), request.query_params.get("have")
    last = request.headers.get(LAST_EVENT_ID)
    if stream_id is None and last is None:
        message = "Last-Event-ID must be given, or the id of the stream in the path"
        raise InvalidRequest(message, field="Last-Event-ID")
    if last is None:
        counts = [] if have is None else read_counts(have)
        return StreamCursor(check_stream_id(str(stream_id)), counts)
    if have is not None:
        raise InvalidRequest("give Last-Event-ID or have, and not both", field="have")
    cursor = StreamCursor.parse(last)
    if stream_id not in (None, cursor.stream_id):
        message = "Last-Event-ID is of another stream than the path"
        raise InvalidRequest(message, field="Last-Event-ID")
    return cursor
