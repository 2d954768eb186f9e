"""The HTTP front end: OpenAI's and Anthropic's API over a Generator, with health and metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from cluster.api import Generator
from cluster.api.event_streams import unless
from cluster.api.limits import MAX_REQUEST_BYTES
from cluster.gateway.answers.arrival import RequestArrival
from cluster.gateway.answers.endpoints import STREAM_HEADER, StreamEndpoints
from cluster.gateway.answers.failures import (
    answering,
    failed,
    gone,
    identified,
    json_answer,
    raised,
    request_id,
    trace_of,
)
from cluster.gateway.answers.front_end import WholeReply
from cluster.gateway.browser_access import BrowserGuard, BrowserRules
from cluster.gateway.connections.byte_budget import ByteBudget
from cluster.gateway.connections.refusals import http_refusals
from cluster.gateway.json_body import read_json
from cluster.gateway.messages.endpoints import MessagesEndpoints
from cluster.gateway.openai_chunks import Json
from cluster.gateway.openai_echo import EchoReply
from cluster.gateway.openai_requests import ChatRequest, CompletionRequest, OpenAICall
from cluster.gateway.openai_response import OpenAIReply
from cluster.gateway.responses.endpoints import ResponseEndpoints
from cluster.gateway.sse import EventStream, disconnected
from cluster.gateway.websocket import TENANT_HEADER, SocketGateway
from cluster.tenants.api_keys import ApiKeys, authorization_of, check_metrics, identify
from engine.errors import NotFound, shown
from engine.kv.prefix_digest import DEFAULT_TENANT

_T = TypeVar("_T")

STALL_S = 60.0
# Large bodies that may be half received.
_BODIES_AT_ONCE = 64
_STREAM_METHODS = ["GET", "DELETE"]
Metrics = Callable[[], tuple[bytes, str]]


def create_app(
    generator: Generator,
    metrics: Metrics,
    *,
    max_body_bytes: int = MAX_REQUEST_BYTES,
    stall_s: float = STALL_S,
    keys: ApiKeys | None = None,
    arrived: Callable[[], float] = time.monotonic,
    rules: BrowserRules | None = None,
    more_routes: Sequence[BaseRoute] = (),
) -> Starlette:
    """The app over `generator`; `metrics` gives the body and the content type of `/metrics`.

    `rules` say which pages may call; without them, pages of this server by its usual names.
    `more_routes` are served beside the routes of the API. `arrived` says when a request that is
    read now came to the socket (monotonic).

    The app's `state.drain` ends the WebSockets, each when its generations have ended. Its
    `state.refusals` counts what it refuses, for the server to count there too.
    """
    gateway = HttpGateway(
        generator,
        metrics,
        max_body_bytes=max_body_bytes,
        stall_s=stall_s,
        keys=keys,
        arrived=arrived,
    )
    sockets = SocketGateway(generator, stall_s=stall_s, keys=keys, arrived=arrived)
    messages = MessagesEndpoints(generator, gateway, stall_s)
    responses = ResponseEndpoints(generator, gateway, stall_s)
    streams = StreamEndpoints(generator, stall_s, gateway.tenant, failed)
    refusals = http_refusals()
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", answering(gateway.chat), methods=["POST"]),
            Route("/v1/completions", answering(gateway.completions), methods=["POST"]),
            Route("/v1/messages", answering(messages.create), methods=["POST"]),
            Route("/v1/messages/count_tokens", answering(messages.count), methods=["POST"]),
            *_response_routes(responses),
            Route("/v1/streams", answering(streams.answer)),
            Route("/v1/streams/{stream_id}", answering(streams.answer), methods=_STREAM_METHODS),
            WebSocketRoute("/v1/stream", sockets.serve),
            Route("/v1/models", answering(gateway.models)),
            Route("/v1/models/", answering(gateway.models)),
            Route("/v1/models/{name:path}", answering(gateway.model)),
            Route("/health", answering(gateway.healthz)),
            Route("/healthz", answering(gateway.healthz)),
            Route("/metrics", answering(gateway.metrics)),
            *more_routes,
        ],
        exception_handlers={HTTPException: raised},
        middleware=[Middleware(BrowserGuard, rules or BrowserRules.of(), keys is None, refusals)],
    )
    app.router.redirect_slashes = False
    app.state.drain = sockets.drain
    app.state.refusals = refusals
    return app


def _response_routes(responses: ResponseEndpoints) -> list[Route]:
    one = "/v1/responses/{response_id}"
    return [
        Route("/v1/responses", answering(responses.create), methods=["POST"]),
        Route(one, answering(responses.retrieve)),
        Route(f"{one}/cancel", answering(responses.cancel), methods=["POST"]),
    ]


class HttpGateway:
    """The endpoints. Each returns a response or raises; `answering` turns errors into answers."""

    def __init__(
        self,
        generator: Generator,
        metrics: Metrics,
        *,
        max_body_bytes: int,
        stall_s: float,
        keys: ApiKeys | None = None,
        arrived: Callable[[], float] = time.monotonic,
    ) -> None:
        self._arrived = arrived
        self._keys = keys
        self._generator = generator
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes
        self._bodies = ByteBudget(_BODIES_AT_ONCE * max_body_bytes)
        self._stall_s = stall_s

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        call = await self.take(request, lambda body, arrival: ChatRequest.read(body).call(*arrival))
        return await self._reply(request, "chat", call)

    async def completions(self, request: Request) -> Response:
        """`POST /v1/completions`."""

        def take(body: object, arrival: RequestArrival) -> tuple[CompletionRequest, OpenAICall]:
            found = CompletionRequest.read(body)
            return found, found.call(*arrival)

        completion, call = await self.take(request, take)
        if not completion.echo:
            return await self._reply(request, "completion", call)
        longer = completion.max_tokens == 1
        reply = EchoReply(call, self._generator, logprobs=completion.logprobs, longer=longer)
        request.state.request_id = call.request_id
        return await self.whole(request, reply)

    async def take(self, request: Request, take: Callable[[Any, RequestArrival], _T]) -> _T:
        """What `take` makes of the body of a request, and of how it arrived."""
        arrived_s, tenant = self._arrived(), self.tenant(request)
        arrival = RequestArrival(request_id(request), tenant, arrived_s, trace_of(request))
        return await read_json(
            request, self._max_body_bytes, self._bodies, lambda body: take(body, arrival)
        )

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`."""
        self.tenant(request)
        return json_answer({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/{id}`."""
        self.tenant(request)
        name = request.path_params["name"]
        if name != self._generator.model.name:
            raise NotFound(f"the model {shown(name)} is not served here", field="model")
        return json_answer(self._card())

    async def healthz(self, request: Request) -> Response:
        """`GET /health` and `/healthz`: 200 once every pool has a healthy replica.

        The body names missing pools and unhealthy replicas. Where there are API keys it names
        none, because the endpoint asks for no key.
        """
        missing, unhealthy = self._generator.missing(), self._generator.unhealthy()
        found = {"missing": list(missing), "unhealthy": list(unhealthy)}
        named = {key: ids for key, ids in found.items() if ids and self._keys is None}
        if missing:
            return json_answer({"status": "unavailable", **named}, 503)
        return json_answer({"status": "ok", **named})

    async def metrics(self, request: Request) -> Response:
        """`GET /metrics`, where there are API keys for holders of the right one."""
        check_metrics(self._keys, request.headers.get("authorization"))
        body, content_type = self._metrics()
        return Response(body, headers={"content-type": content_type})

    async def _reply(self, request: Request, form: str, call: OpenAICall) -> Response:
        request.state.request_id = call.request_id
        headers = identified(request)
        reply = OpenAIReply(form, call, self._generator)
        if call.stream:
            if reply.stream_id:
                headers[STREAM_HEADER] = reply.stream_id
            return EventStream(reply.events(), headers, self._stall_s, partial(failed, request))
        return await self.whole(request, reply)

    async def whole(self, request: Request, reply: WholeReply) -> Response:
        """The answer with a whole reply, unless the client leaves."""
        whole = await unless(disconnected(request.receive), reply.whole())
        headers = identified(request)
        return gone() if whole is None else Response(whole, 200, headers, "application/json")

    def tenant(self, request: Request) -> str:
        """The tenant of the request's API key. Without keys a tenant only separates caches."""
        named = request.headers.get(TENANT_HEADER, DEFAULT_TENANT)
        return identify(self._keys, authorization_of(request.headers.get), named)

    def _card(self) -> Json:
        card = self._generator.model
        return {
            "id": card.name,
            "object": "model",
            "created": card.created,
            "owned_by": "tandem",
            "context_tokens": card.context_tokens,
            "endpoints": list(card.endpoints),
            "lanes": dict(zip(card.endpoints, card.lanes, strict=False)),
        }
