"""Refused connections: the answer as bytes, and where refusals are counted."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http import HTTPStatus

from cluster.api.error_mapping import error_body
from cluster.telemetry.connection_metrics import count_refused
from protos.wire.refusals import RefusedConnections


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a connection is refused. `answer` is the whole HTTP response, in OpenAI's error form."""

    status: int
    reason: str
    message: str
    code: str | None = None
    retry_after_s: int | None = None
    answer: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        body = json.dumps(error_body(self.message, kind, self.code, None)).encode()
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
        ]
        if self.retry_after_s is not None:
            lines.append(f"retry-after: {self.retry_after_s}")
        object.__setattr__(self, "answer", "\r\n".join([*lines, "\r\n"]).encode() + body)


MALFORMED = Refusal(400, "malformed", "this is not a valid HTTP request", "bad_request")
LATE = Refusal(408, "timeout", "the headers did not come in time", "request_timeout")
LONG_URL = Refusal(414, "url", "the URL is too long", "url_too_long")
LARGE_HEAD = Refusal(431, "headers", "the headers are too large, or too many", "headers_too_large")
PIPELINED = Refusal(429, "pipelined", "too many requests wait on this connection", "pipelined")
FULL = Refusal(
    503,
    "too_many",
    "too many connections are open; try again",
    "too_many_connections",
    retry_after_s=1,
)


def http_refusals() -> RefusedConnections:
    """A new count of the refused connections of the HTTP front end."""
    return RefusedConnections("http", count_refused("http"))
