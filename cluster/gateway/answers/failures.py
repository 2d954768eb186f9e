"""The id of an HTTP request, and its answer where it fails, in the form of its API."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from cluster.api.error_mapping import error_body, http_error
from cluster.api.tracing import REQUEST_ID, Trace
from cluster.gateway.messages.errors import MESSAGES_ID, is_messages, messages_error
from cluster.gateway.openai_chunks import Json
from cluster.gateway.sse import dump
from cluster.telemetry.router_metrics import FRONT_END_ERRORS
from engine.errors import Internal, TandemError

log = logging.getLogger(__name__)

CLIENT_CLOSED = 499
# An error quotes what it was asked for, and no browser may take that for a page.
NO_SNIFF = {"x-content-type-options": "nosniff"}
_REFUSED = {408: "timeout", 413: "body", 415: "content_type"}
Endpoint = Callable[[Request], Awaitable[Response]]


def answering(endpoint: Endpoint) -> Endpoint:
    """Wrap an endpoint: its exceptions become answers."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as error:
            return failed(request, error)

    return answer


def failed(request: Request, error: Exception) -> Response:
    """The answer to a request that failed with this error."""
    if isinstance(error, ClientDisconnect):
        return gone()
    if isinstance(error, HTTPException):
        return _http_failure(request, error)
    if not isinstance(error, TandemError):
        place = f"{request.method} {request.url.path}"
        log.error("%s ended in a fault", place, exc_info=error)
        error = Internal("internal error")
    FRONT_END_ERRORS.inc(front_end="http", error=type(error).__name__)
    status, body, headers = http_error(error)
    return _error(request, body, status, headers)


async def raised(request: Request, error: Exception) -> Response:
    """As `failed`, for the errors of the routes."""
    return failed(request, error)


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
    return _error(request, body, error.status_code, dict(error.headers or {}))


def _error(request: Request, body: Json, status: int, headers: dict[str, str]) -> Response:
    """An error in the form of the API that the request is of."""
    headers |= identified(request) | NO_SNIFF
    if is_messages(request.url.path):
        message = body["error"]["message"]
        status, body = messages_error(status, message, headers[MESSAGES_ID])
    return json_answer(body, status, headers)


def request_id(request: Request) -> str:
    """The id of the request: that of its body, once it is read, or else a new one."""
    if not hasattr(request.state, "request_id"):
        request.state.request_id = trace_of(request).new_id()
    found: str = request.state.request_id
    return found


def trace_of(request: Request) -> Trace:
    """What the client's own tracing says of the request."""
    return Trace.of(request.headers.get)


def identified(request: Request) -> dict[str, str]:
    """The headers with the client's own `X-Request-Id`, or else with the request's id."""
    name = trace_of(request).request_id or request_id(request)
    more = {MESSAGES_ID: name} if is_messages(request.url.path) else {}
    return {REQUEST_ID: name, **more}


def json_answer(
    document: Json, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer of JSON."""
    return Response(dump(document), status, headers, "application/json")


def gone() -> Response:
    """The answer that a client that left does not get."""
    return Response(status_code=CLIENT_CLOSED)
