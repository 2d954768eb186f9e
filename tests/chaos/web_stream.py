"""One request over HTTP or a WebSocket, which goes on at the next router where it breaks.

It is what a careful client of a user's own would do. `tandem_client` does the same over gRPC.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import httpx
from websockets.exceptions import WebSocketException

from cluster.api import Event, Started, Summary, Tokens
from cluster.api.error_mapping import TABLE
from engine.errors import Cancelled, Internal, InvalidRequest, NotFound, TandemError, Unavailable
from engine.types.sequence import SampledToken
from protos.status import retry_after

# Bounds: how long a break of a stream may last, and the time until any router takes a request.
_WINDOW_S, _TAKEN_S = 60.0, 10.0
_PAUSES_S = (0.02, 0.1, 0.5, 1.0)
_BROKEN = (OSError, httpx.TransportError, WebSocketException)
_KINDS = {status.code: kind for kind, status in TABLE.items() if status.code is not None}


class WebStream(ABC):
    """The events of one request. `doors` are host:port of the routers, `n` counts the choices."""

    def __init__(self, doors: Sequence[str], options: Mapping[str, Any]) -> None:
        self.doors = doors
        self.options = dict(options)
        self.tenant = str(self.options.pop("tenant"))
        self.name = str(self.options["request_id"])
        self.n = int(self.options.get("n", 1))
        self.have = Counter[int]()
        self.stream_id = ""
        self.cancelled = self.ended = self._started = self._news = False

    async def events(self) -> AsyncIterator[Event]:
        """Started, then Tokens, then Summary; raises a TandemError."""
        at, failures, until_s = zlib.crc32(self.name.encode()), 0, 0.0
        while True:
            self._news = False
            try:
                async with aclosing(self.call(self.doors[at % len(self.doors)])) as events:
                    async for event in events:
                        yield event
                if self.ended:
                    return
                failed: TandemError = Unavailable("the answer ended early")
            except _BROKEN as error:
                failed = Unavailable(f"the connection broke: {error!r}")
            except TandemError as error:
                if not self.stream_id or retry_after(error) is None:
                    raise
                failed = error
            if self.cancelled and not self.stream_id:
                raise Cancelled("its client closed the connection")
            if self._started and not self.stream_id:
                raise failed
            if self._news or not failures:
                failures = 0
                until_s = time.monotonic() + (_WINDOW_S if self.stream_id else _TAKEN_S)
            pause_s = _PAUSES_S[min(failures // len(self.doors), len(_PAUSES_S) - 1)]
            at, failures = at + 1, failures + 1
            if time.monotonic() + pause_s > until_s:
                raise failed
            await asyncio.sleep(pause_s)

    @abstractmethod
    def call(self, door: str) -> AsyncIterator[Event]:
        """Begin at this router, or go on there, until the connection ends or the stream does."""

    @abstractmethod
    async def cancel(self) -> None:
        """End the request. Where no router can be asked now, nothing happens."""

    def started(self, stream_id: str) -> Sequence[Event]:
        """The stream began, or goes on: the event of that, once."""
        self.stream_id = stream_id or self.stream_id
        again, self._started = self._started, True
        return [] if again else [Started(self.name, "", 0, 0, stream_id)]

    def tokens(
        self, choice: int, index: int, ids: Sequence[int], piece: Mapping[str, Any]
    ) -> Event:
        """The event of some tokens; `piece` has text, reason and log-probabilities."""
        self._news = True
        self.have[choice] += len(ids)
        listing = piece.get("logprobs") or {}
        logprobs = listing.get("token_logprobs", ())
        sampled = tuple(map(SampledToken, ids, logprobs)) if logprobs else ()
        return Tokens(choice, index, tuple(ids), piece["text"], piece["finish_reason"], sampled)

    def summary(self) -> Event:
        """The stream ended well."""
        self.ended = True
        return Summary(0, self.have.total(), (), 0.0)


def error_of(body: Mapping[str, Any], wait_ms: int | None) -> TandemError:
    """The error that a body in OpenAI's form stands for."""
    found = body["error"]
    kind = _KINDS.get(found["code"], InvalidRequest)
    if kind is TandemError:
        kind = Internal
    if issubclass(kind, InvalidRequest | NotFound):
        return kind(found["message"], field=found["param"])
    return kind(found["message"], retry_after_s=None if wait_ms is None else wait_ms / 1000)
