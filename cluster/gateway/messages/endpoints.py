"""`/v1/messages`: Anthropic's Messages API."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cluster.api import Generator
from cluster.gateway.answers.arrival import RequestArrival
from cluster.gateway.answers.failures import failed, identified
from cluster.gateway.answers.front_end import HttpFrontEnd
from cluster.gateway.messages.errors import error_event
from cluster.gateway.messages.reply import MessagesReply
from cluster.gateway.messages.requests import (
    CountCall,
    CountRequest,
    MessagesCall,
    MessagesRequest,
)
from cluster.gateway.sse import EventStream, dump


class MessagesEndpoints:
    """The endpoints of the Messages API."""

    def __init__(self, generator: Generator, front_end: HttpFrontEnd, stall_s: float) -> None:
        self._generator = generator
        self._front_end = front_end
        self._stall_s = stall_s

    async def create(self, request: Request) -> Response:
        """`POST /v1/messages`."""
        call = await self._front_end.take(request, _read_message)
        name = request.state.request_id = call.request.request_id
        reply = MessagesReply(call, self._generator)
        if not call.stream:
            return await self._front_end.whole(request, reply)
        return EventStream(
            reply.events(),
            identified(request),
            self._stall_s,
            partial(failed, request),
            partial(error_event, request_id=name),
        )

    async def count(self, request: Request) -> Response:
        """`POST /v1/messages/count_tokens`."""
        call = await self._front_end.take(request, _read_count)
        return await self._front_end.whole(request, TokenCount(call, self._generator))


class TokenCount:
    """The number of a chat's tokens."""

    def __init__(self, call: CountCall, generator: Generator) -> None:
        self._call = call
        self._generator = generator

    async def whole(self) -> bytes:
        """The number as JSON; raises a TandemError."""
        tokens = await self._generator.count_tokens(self._call.model, self._call.prompt)
        return dump({"input_tokens": tokens})


def _read_message(body: Any, arrival: RequestArrival) -> MessagesCall:
    return MessagesRequest.read(body).call(*arrival)


def _read_count(body: Any, arrival: RequestArrival) -> CountCall:
    return CountRequest.read(body).call()
