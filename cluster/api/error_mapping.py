"""The status of each TandemError: over gRPC, over HTTP, and in OpenAI's error form.

`TABLE` has all of them. Another class has the status of its nearest ancestor. Over gRPC,
trailers carry what the status cannot: the class (`tandem-error`), the field that is wrong
(`tandem-field`) and when to try again (`retry-after-ms`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from engine.errors import (
    AlreadyRunning,
    Cancelled,
    ConfigError,
    DeadlineExceeded,
    Internal,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    PromptTooLong,
    ReplicaLost,
    TandemError,
    TransferFailed,
    Unauthenticated,
    Unavailable,
    UnsupportedModel,
)
from protos import calls_pb2
from protos.status import one_line, retry_after_ms
from tandem_client.errors import error_class

# The header of a refusal over HTTP with the time from its arrival to the decision.
DECIDED_HEADER = "x-decided-ms"


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """One line of the table: gRPC status, HTTP status, OpenAI's `type` and `code`."""

    grpc: grpc.StatusCode
    http: int
    type: str
    code: str | None


_CODE = grpc.StatusCode
_REQUEST = "invalid_request_error"
_SERVER = "server_error"
TABLE: Mapping[type[TandemError], ErrorStatus] = {
    TandemError: ErrorStatus(_CODE.INTERNAL, 500, _SERVER, "internal_error"),
    InvalidRequest: ErrorStatus(_CODE.INVALID_ARGUMENT, 400, _REQUEST, None),
    PromptTooLong: ErrorStatus(_CODE.INVALID_ARGUMENT, 400, _REQUEST, "context_length_exceeded"),
    AlreadyRunning: ErrorStatus(_CODE.ABORTED, 409, _REQUEST, "already_running"),
    NotFound: ErrorStatus(_CODE.NOT_FOUND, 404, _REQUEST, "not_found"),
    Unauthenticated: ErrorStatus(_CODE.UNAUTHENTICATED, 401, _REQUEST, "invalid_api_key"),
    PermissionDenied: ErrorStatus(_CODE.PERMISSION_DENIED, 403, _REQUEST, "permission_denied"),
    ConfigError: ErrorStatus(_CODE.FAILED_PRECONDITION, 500, _SERVER, "wrong_configuration"),
    UnsupportedModel: ErrorStatus(_CODE.FAILED_PRECONDITION, 501, _SERVER, "unsupported_model"),
    Overloaded: ErrorStatus(_CODE.RESOURCE_EXHAUSTED, 429, "rate_limit_error", "overloaded"),
    Unavailable: ErrorStatus(_CODE.UNAVAILABLE, 503, _SERVER, "unavailable"),
    ReplicaLost: ErrorStatus(_CODE.UNAVAILABLE, 503, _SERVER, "replica_lost"),
    TransferFailed: ErrorStatus(_CODE.UNAVAILABLE, 503, _SERVER, "transfer_failed"),
    DeadlineExceeded: ErrorStatus(_CODE.DEADLINE_EXCEEDED, 504, _SERVER, "deadline_exceeded"),
    Cancelled: ErrorStatus(_CODE.CANCELLED, 499, "cancelled_error", "cancelled"),
    Internal: ErrorStatus(_CODE.INTERNAL, 500, _SERVER, "internal_error"),
}


def status_of(error: TandemError) -> ErrorStatus:
    """The status of the error's class, or of the nearest ancestor that has one."""
    return next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)


def http_error(error: TandemError) -> tuple[int, dict[str, Any], dict[str, str]]:
    """HTTP status, body in OpenAI's form, and headers."""
    status = status_of(error)
    headers = {}
    wait_ms = retry_after_ms(error)
    if wait_ms is not None:
        headers["retry-after"] = str(max(1, math.ceil(wait_ms / 1000)))
        headers["retry-after-ms"] = str(wait_ms)
    decided_s = getattr(error, "decided_s", None)
    if decided_s is not None:
        headers[DECIDED_HEADER] = f"{decided_s * 1000:.1f}"
    if status.http == 401:
        headers["www-authenticate"] = "Bearer"
    field = getattr(error, "field", None)
    code = "model_not_found" if status.http == 404 and field == "model" else status.code
    body = error_body(error.message, status.type, code, field)
    return status.http, body, headers


def error_body(message: str, kind: str, code: str | None, field: str | None) -> dict[str, Any]:
    """OpenAI's error form; `param` names the field that is wrong."""
    param = None if field is None else one_line(field)
    return {"error": {"message": one_line(message), "type": kind, "param": param, "code": code}}


def error_from_failure(failure: calls_pb2.Failure) -> TandemError:
    """The TandemError that a failed call in a stream stands for, as the replica raised it."""
    kind = error_class(failure.kind) or Internal
    if issubclass(kind, InvalidRequest | NotFound):
        field = failure.field if failure.HasField("field") else None
        return kind(failure.message, field=field)
    wait_ms = failure.retry_after_ms if failure.HasField("retry_after_ms") else None
    return kind(failure.message, retry_after_s=None if wait_ms is None else wait_ms / 1000)
