"""Server-sent events. The stream ends with its client, and reports a failure as an event."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cluster.api.bounded_json import on_one_line
from cluster.api.error_mapping import http_error
from cluster.api.event_streams import StallWatch, unless
from engine.errors import Internal, TandemError
from protos.status import retry_after_ms

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
# Bound: items of a list that are written in one step.
_PIECE_ITEMS = 512
HEARTBEAT = b": heartbeat\n\n"
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def data(document: Mapping[str, Any]) -> bytes:
    """One event that carries a JSON document."""
    return b"data: " + dump(document) + b"\n\n"


def comment(name: str, document: Mapping[str, Any]) -> bytes:
    """A comment that carries a JSON document. Clients that do not know it ignore comments."""
    return b": " + name.encode() + b" " + dump(document) + b"\n\n"


def dump(document: Mapping[str, Any]) -> bytes:
    """Compact JSON in UTF-8 on one line; a lone surrogate becomes a question mark."""
    return on_one_line(_ENCODER.encode(document)).encode(errors="replace")


def _written(value: Any) -> bytes:
    return on_one_line(_ENCODER.encode(value)).encode(errors="replace")


def dump_large(document: Mapping[str, Any]) -> bytes:
    """As `dump`, in pieces, between which other threads run. Call it on a thread."""
    return b"".join(_pieces(document))


def _pieces(value: Any) -> Iterator[bytes]:
    """`value` as JSON; long lists, and what is in an object, are written by and by."""
    if isinstance(value, dict):
        before = b"{"
        for name, one in value.items():
            yield before + _written(name) + b":"
            yield from _pieces(one)
            before = b","
        yield b"{}" if before == b"{" else b"}"
    elif isinstance(value, list) and len(value) > _PIECE_ITEMS:
        before = b"["
        for start in range(0, len(value), _PIECE_ITEMS):
            yield before + _written(value[start : start + _PIECE_ITEMS])[1:-1]
            before = b","
        yield b"]"
    elif isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        before = b"["
        for one in value:
            yield before
            yield from _pieces(one)
            before = b","
        yield b"]"
    else:
        yield _written(value)


async def disconnected(receive: Receive) -> None:
    """Return once the client is gone; the body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def error_data(error: TandemError) -> bytes:
    """The last event of a failed stream in OpenAI's form: no `[DONE]` comes behind it.

    It has the retry time that no header can carry any more.
    """
    _, body, _ = http_error(error)
    wait_ms = retry_after_ms(error)
    if wait_ms is not None:
        body["error"]["retry_after_ms"] = wait_ms
    return data(body)


class EventStream(Response):
    """A response of events, which are closed in any case. The headers are set in `__init__`.

    Nothing is sent before the first event: `failed` makes the answer of an error in its place. A
    later error is sent as the event that `broken` makes, and the stream ends. A stream whose client
    reads nothing for `stall_s` ends.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        headers: Mapping[str, str],
        stall_s: float,
        failed: Callable[[Exception], Response],
        broken: Callable[[TandemError], bytes] = error_data,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._events = events
        self._stall_s = stall_s
        self._failed = failed
        self._broken = broken
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they, or the client, end."""
        try:
            await unless(disconnected(receive), self._answer(scope, receive, send))
        finally:
            close = getattr(self._events, "aclose", None)
            if close is not None:
                await close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            first = await anext(self._events)
        except Exception as error:
            await self._failed(error)(scope, receive, send)
        else:
            await self._send_all(first, send)

    async def _send_all(self, first: bytes, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async with StallWatch(self._stall_s) as watch:
                async for event in self._guarded(first):
                    body = {"type": "http.response.body", "body": event, "more_body": True}
                    await watch.write(send(body))
        except TimeoutError:
            log.info("a client read nothing for %g s and its stream was ended", self._stall_s)
        else:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _guarded(self, first: bytes) -> AsyncIterator[bytes]:
        """The events; an error becomes the last event."""
        yield first
        try:
            async for event in self._events:
                yield event
        except TandemError as error:
            yield self._broken(error)
        except Exception:
            log.exception("a stream ended in a fault")
            yield self._broken(Internal("internal error"))
