"""Errors in Anthropic's form."""

from __future__ import annotations

from cluster.api.error_mapping import http_error
from cluster.gateway.messages.reply import event
from cluster.gateway.openai_chunks import Json
from engine.errors import TandemError
from protos.status import retry_after_ms

PATH = "/v1/messages"
# The header with the id of a request, beside `X-Request-Id`.
MESSAGES_ID = "request-id"
OVERLOADED = 529
_UNAVAILABLE = 503
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    499: "api_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}


def is_messages(path: str) -> bool:
    """Whether a path is of the Messages API."""
    return path == PATH or path.startswith(f"{PATH}/")


def messages_error(status: int, message: str, request_id: str | None) -> tuple[int, Json]:
    """Status and body in Anthropic's form; 529 takes the place of 503."""
    status = OVERLOADED if status == _UNAVAILABLE else status
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    error = {"type": kind, "message": message}
    return status, {"type": "error", "error": error, "request_id": request_id}


def error_event(error: TandemError, request_id: str) -> bytes:
    """The last event of a failed stream, with the retry time that no header can carry any more."""
    status, body, _ = http_error(error)
    _, found = messages_error(status, body["error"]["message"], request_id)
    wait_ms = retry_after_ms(error)
    if wait_ms is not None:
        found["error"]["retry_after_ms"] = wait_ms
    return event(found)
