"""The HTTP front end: OpenAI's API over a Generator, with health and metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute

from cluster.api import Generator
from cluster.api.error_mapping import error_body, http_error
from cluster.api.event_streams import unless
from cluster.api.limits import MAX_REQUEST_BYTES
from cluster.api.tracing import REQUEST_ID, Trace
from cluster.gateway.answers.arrival import RequestArrival
from cluster.gateway.answers.endpoints import STREAM_HEADER, StreamEndpoints
from cluster.gateway.browser_access import BrowserGuard, BrowserRules
from cluster.gateway.connections.byte_budget import ByteBudget
from cluster.gateway.connections.refusals import http_refusals
from cluster.gateway.json_body import read_json
from cluster.gateway.openai_chunks import Json
from cluster.gateway.openai_echo import EchoReply
from cluster.gateway.openai_requests import ChatRequest, CompletionRequest, OpenAICall
from cluster.gateway.openai_response import OpenAIReply
from cluster.gateway.responses.endpoints import ResponseEndpoints
from cluster.gateway.sse import EventStream, disconnected, dump
from cluster.gateway.websocket import TENANT_HEADER, SocketGateway
from cluster.telemetry.router_metrics import FRONT_END_ERRORS
from cluster.tenants.api_keys import ApiKeys, check_metrics, identify
from engine.errors import Internal, NotFound, TandemError, shown
from engine.kv.prefix_digest import DEFAULT_TENANT

log = logging.getLogger(__name__)
_T = TypeVar("_T")

STALL_S = 60.0
CLIENT_CLOSED = 499
# Large bodies that may be half received.
_BODIES_AT_ONCE = 64
_STREAM_METHODS = ["GET", "DELETE"]
_REFUSED = {408: "timeout", 413: "body", 415: "content_type"}
Metrics = Callable[[], tuple[bytes, str]]
Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(
    generator: Generator,
    metrics: Metrics,
    *,
    max_body_bytes: int = MAX_REQUEST_BYTES,
    stall_s: float = STALL_S,
    keys: ApiKeys | None = None,
    arrived: Callable[[], float] = time.monotonic,
    rules: BrowserRules | None = None,
) -> Starlette:
    """The app over `generator`; `metrics` gives the body and the content type of `/metrics`.

    `rules` say which pages may call; without them, pages of this server by its usual names.

    `arrived` says when a request that is read now came to the socket (monotonic).
    Its `state.drain` ends the WebSockets, each when its generations have ended. Its
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
    streams = StreamEndpoints(generator, stall_s, gateway.tenant, _failed)
    responses = ResponseEndpoints(generator, stall_s, gateway, _failed)
    refusals = http_refusals()
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", _answering(gateway.chat), methods=["POST"]),
            Route("/v1/completions", _answering(gateway.completions), methods=["POST"]),
            Route("/v1/responses", _answering(responses.create), methods=["POST"]),
            Route("/v1/responses/{response_id}", _answering(responses.retrieve)),
            Route(
                "/v1/responses/{response_id}/cancel",
                _answering(responses.cancel),
                methods=["POST"],
            ),
            Route("/v1/streams", _answering(streams.answer)),
            Route("/v1/streams/{stream_id}", _answering(streams.answer), methods=_STREAM_METHODS),
            WebSocketRoute("/v1/stream", sockets.serve),
            Route("/v1/models", _answering(gateway.models)),
            Route("/v1/models/", _answering(gateway.models)),
            Route("/v1/models/{name:path}", _answering(gateway.model)),
            Route("/health", _answering(gateway.healthz)),
            Route("/healthz", _answering(gateway.healthz)),
            Route("/metrics", _answering(gateway.metrics)),
        ],
        exception_handlers={HTTPException: _raised},
        middleware=[Middleware(BrowserGuard, rules or BrowserRules.of(), keys is None, refusals)],
    )
    app.router.redirect_slashes = False
    app.state.drain = sockets.drain
    app.state.refusals = refusals
    return app


class HttpGateway:
    """The endpoints. Each returns a response or raises; `_answering` turns errors into answers."""

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
        return await self._whole(request, reply)

    async def take(self, request: Request, take: Callable[[Any, RequestArrival], _T]) -> _T:
        """What `take` makes of the body of a request, and of how it arrived."""
        arrived_s, tenant = self._arrived(), self.tenant(request)
        arrival = RequestArrival(_request_id(request), tenant, arrived_s, _trace(request))
        return await read_json(
            request, self._max_body_bytes, self._bodies, lambda body: take(body, arrival)
        )

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`."""
        self.tenant(request)
        return _json({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/{id}`."""
        self.tenant(request)
        name = request.path_params["name"]
        if name != self._generator.model.name:
            raise NotFound(f"the model {shown(name)} is not served here", field="model")
        return _json(self._card())

    async def healthz(self, request: Request) -> Response:
        """`GET /health` and `/healthz`: 200 once every pool has a healthy replica.

        It names unhealthy ones.

        Where there are API keys it names no pool and no replica, as it asks for no key.
        """
        missing, unhealthy = self._generator.missing(), self._generator.unhealthy()
        found = {"missing": list(missing), "unhealthy": list(unhealthy)}
        named = {key: ids for key, ids in found.items() if ids and self._keys is None}
        if missing:
            return _json({"status": "unavailable", **named}, 503)
        return _json({"status": "ok", **named})

    async def metrics(self, request: Request) -> Response:
        """`GET /metrics`, where there are API keys for holders of the right one."""
        check_metrics(self._keys, request.headers.get("authorization"))
        body, content_type = self._metrics()
        return Response(body, headers={"content-type": content_type})

    async def _reply(self, request: Request, form: str, call: OpenAICall) -> Response:
        request.state.request_id = call.request_id
        headers = _identified(request)
        reply = OpenAIReply(form, call, self._generator)
        if call.stream:
            if reply.stream_id:
                headers[STREAM_HEADER] = reply.stream_id
            return EventStream(reply.events(), headers, self._stall_s, partial(_failed, request))
        return await self._whole(request, reply)

    async def _whole(self, request: Request, reply: OpenAIReply | EchoReply) -> Response:
        whole = await unless(disconnected(request.receive), reply.whole())
        headers = _identified(request)
        return _gone() if whole is None else Response(whole, 200, headers, "application/json")

    def tenant(self, request: Request) -> str:
        """The tenant of the request's API key. Without keys a tenant only separates caches."""
        named = request.headers.get(TENANT_HEADER, DEFAULT_TENANT)
        return identify(self._keys, request.headers.get("authorization"), named)

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


def _answering(endpoint: Endpoint) -> Endpoint:
    """Wrap an endpoint: its exceptions become answers in OpenAI's error form."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as error:
            return _failed(request, error)

    return answer


def _failed(request: Request, error: Exception) -> Response:
    """The answer to a request that failed with this error."""
    if isinstance(error, ClientDisconnect):
        return _gone()
    if isinstance(error, HTTPException):
        return _http_failure(request, error)
    if not isinstance(error, TandemError):
        place = f"{request.method} {request.url.path}"
        log.error("%s ended in a fault", place, exc_info=error)
        error = Internal("internal error")
    FRONT_END_ERRORS.inc(front_end="http", error=type(error).__name__)
    status, body, headers = http_error(error)
    return _json(body, status, headers | _identified(request))


async def _raised(request: Request, error: Exception) -> Response:
    return _failed(request, error)


def _http_failure(request: Request, error: HTTPException) -> Response:
    codes = {
        404: "not_found",
        405: "method_not_allowed",
        413: "request_too_large",
        415: "unsupported_media_type",
    }
    message = error.detail
    if error.status_code in _REFUSED:
        request.app.state.refusals.add(_REFUSED[error.status_code])
    if error.status_code in (404, 405):
        message = f"{message}: {request.method} {request.url.path}"
    code = codes.get(error.status_code)
    body = error_body(message, "invalid_request_error", code, None)
    headers = dict(error.headers or {}) | _identified(request)
    return _json(body, error.status_code, headers)


def _request_id(request: Request) -> str:
    """The id of the request: that of its body, once it is read, or else a new one."""
    if not hasattr(request.state, "request_id"):
        request.state.request_id = _trace(request).new_id()
    found: str = request.state.request_id
    return found


def _trace(request: Request) -> Trace:
    return Trace.of(request.headers.get)


def _identified(request: Request) -> dict[str, str]:
    """The header with the client's own `X-Request-Id`, or else with the request's id."""
    return {REQUEST_ID: _trace(request).request_id or _request_id(request)}


def _json(document: Json, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(dump(document), status, headers, "application/json")


def _gone() -> Response:
    return Response(status_code=CLIENT_CLOSED)
