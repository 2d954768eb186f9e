"""A resumable stream over several routers: it goes on behind its last event where a call breaks.

A call broke where the connection ended without an error of the router, or where the router was
silent (`silence_watch`). The next call is `Resume` with the number of tokens that came, by choice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import grpc
import grpc.aio

from tandem_client.call_tries import CallTries, NotTaken, TandemErrors
from tandem_client.errors import (
    DeadlineExceeded,
    Internal,
    Overloaded,
    TandemError,
    Unavailable,
    retry_after,
)
from tandem_client.events import Event, Started, Summary, Tokens
from tandem_client.messages import event_from_proto
from tandem_client.protos import inference_pb2
from tandem_client.router_channels import RouterChannel, RouterChannels
from tandem_client.silence_watch import SILENCE_S, WatchedCall

# Bound: the time until a router that answers begins to answer `Resume`.
ANSWER_S = 10.0
_PAUSES_S = (0.02, 0.1, 0.5, 1.0)
# Bound: calls in a row that bring nothing but an Unavailable of the router.
_MOST_FRUITLESS = 3
# Without an error of the router, these are of the connection, or of a proxy.
_BROKEN = (
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
)
_Metadata = tuple[tuple[str, str], ...]


class ResumedStream:
    """The events of one resumable request, each exactly once.

    `request` begins it; without a request, `stream_id` and the tokens that the client has name the
    rest of a known stream. A break may last for `window_s`.
    """

    def __init__(
        self,
        routers: RouterChannels,
        request: inference_pb2.GenerateRequest | None,
        *,
        metadata: _Metadata,
        timeout_s: float | None,
        window_s: float,
        retries: int = 0,
        stream_id: str = "",
        have: Sequence[int] = (),
    ) -> None:
        self._routers = routers
        self._request = request
        self._metadata = metadata
        self._tries = CallTries(routers, timeout_s, retries)
        self._window_s = window_s
        self._window_ends_s = 0.0
        self._stream_id = stream_id
        self._have = dict(enumerate(have))
        self._shown_start = False
        self._ended = False
        # Of the call that runs now: whether it began, and whether something new came.
        self._began = self._news = False
        self._due_s: dict[RouterChannel, float] = {}
        self._failures = 0
        self._fruitless = 0

    async def events(self) -> AsyncGenerator[Event, None]:
        """Started, then Tokens, then Summary; raises a TandemError. Closing it cancels nothing."""
        router = self._routers.first
        while True:
            call, failed = self._call(router), None
            with router.silence.over(call) as watched:
                try:
                    async with TandemErrors(call, _BROKEN):
                        while (wire := await self._read(watched)) is not None:
                            self._tries.over(router)
                            event = self._take(wire)
                            if event is not None:
                                yield event
                    if not self._ended:
                        raise Internal("the reply ended early")
                except (NotTaken, TandemError) as error:
                    failed = error if watched.silence is None else NotTaken(watched.silence)
            if failed is None or self._ended:
                return
            if isinstance(failed, NotTaken):
                router = await self._after_break(router, failed)
            else:
                router = await self._after_error(router, failed)

    def _call(self, router: RouterChannel) -> Any:
        self._began = self._news = False
        options = {"timeout": self._tries.left_s(), "metadata": self._metadata}
        if not self._stream_id:
            return router.stub.Generate(self._request, **options)
        choices = range(max(self._have, default=-1) + 1)
        have = [self._have.get(choice, 0) for choice in choices]
        wanted = inference_pb2.ResumeRequest(stream_id=self._stream_id, have=have)
        return router.stub.Resume(wanted, **options)

    async def _read(self, call: WatchedCall) -> inference_pb2.GenerateEvent | None:
        """The next event; None at the end."""
        limit_s = ANSWER_S if self._stream_id and not self._began else SILENCE_S
        # A request that is not yet known to run is better off with a slow router than with none.
        patient = not self._stream_id and len(self._routers) == 1
        wire = await call.read(limit_s, patient=patient)
        self._began = True
        return None if wire is grpc.aio.EOF else wire

    def _take(self, wire: inference_pb2.GenerateEvent) -> Event | None:
        """The event, if it is for the caller; raises Internal where it is not the next one."""
        event = event_from_proto(wire)
        if isinstance(event, Started):
            again, self._shown_start = self._shown_start, True
            self._stream_id = event.stream_id or self._stream_id
            return None if again else event
        self._news = True
        if isinstance(event, Tokens):
            had = self._have.get(event.choice, 0)
            if event.index != had:
                where = f"choice {event.choice} goes on at token {event.index}"
                raise Internal(f"{where}, and {had} of its tokens came before")
            self._have[event.choice] = had + len(event.ids)
        self._ended = self._ended or isinstance(event, Summary)
        return event

    async def _after_break(self, router: RouterChannel, failed: NotTaken) -> RouterChannel:
        """Wait, and return the router for the next call; raises where none may follow."""
        if not self._stream_id:
            await self._tries.another(router, failed)
            return self._routers.first
        return await self._next(router, failed.error, None)

    async def _after_error(self, router: RouterChannel, error: TandemError) -> RouterChannel:
        """As `_after_break`, for an error of the router.

        The error of a call that began and had nothing new is that of the request itself. An
        Unavailable may also be the journal's, and an Overloaded that of one router, so these are
        believed when they come repeatedly.
        """
        if not self._stream_id:
            await self._tries.another(router, error)
            return self._routers.first
        wait_s = retry_after(error)
        if self._began and not self._news:
            self._fruitless += 1
            if type(error) not in (Unavailable, Overloaded) or self._fruitless > _MOST_FRUITLESS:
                raise error
        if wait_s is None:
            raise error
        return await self._next(router, error, wait_s)

    async def _next(
        self, router: RouterChannel, error: TandemError, wait_s: float | None
    ) -> RouterChannel:
        self._routers.failed(router)
        now_s = time.monotonic()
        if self._news or not self._failures:
            self._window_ends_s, self._failures = now_s + self._window_s, 0
        if self._news:
            self._fruitless = 0
        pause = min(self._failures // len(self._routers), len(_PAUSES_S) - 1)
        self._failures += 1
        self._due_s[router] = now_s + max(_PAUSES_S[pause], wait_s or 0.0)
        chosen = min(
            self._routers, key=lambda one: (max(now_s, self._due_s.get(one, 0.0)), one.failed_s)
        )
        due_s = max(now_s, self._due_s.get(chosen, 0.0))
        left_s = self._tries.left_s()
        if left_s is not None and due_s - now_s >= left_s:
            raise DeadlineExceeded("the request ran out of its time") from error
        if due_s > self._window_ends_s:
            raise error
        await asyncio.sleep(due_s - now_s)
        return chosen
