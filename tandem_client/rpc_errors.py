"""Failed gRPC calls: each as the TandemError that the router raised.

The trailer `grpc-status-details-bin` has the retry time as a `google.rpc.RetryInfo`
(https://grpc.io/docs/guides/error/, the richer error model).
"""

from __future__ import annotations

from collections.abc import Mapping

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from tandem_client.errors import (
    CLASS_TRAILER,
    FIELD_TRAILER,
    AlreadyRunning,
    Cancelled,
    ConfigError,
    DeadlineExceeded,
    Internal,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    TandemError,
    Unauthenticated,
    Unavailable,
    error_class,
)
from tandem_client.protos import error_details_pb2

_DETAILS_TRAILER = "grpc-status-details-bin"
_RETRY_INFO = "google.rpc.RetryInfo"
_CODE = grpc.StatusCode
_BY_CODE: Mapping[grpc.StatusCode, type[TandemError]] = {
    _CODE.INVALID_ARGUMENT: InvalidRequest,
    _CODE.OUT_OF_RANGE: InvalidRequest,
    _CODE.ABORTED: AlreadyRunning,
    _CODE.NOT_FOUND: NotFound,
    _CODE.UNAUTHENTICATED: Unauthenticated,
    _CODE.PERMISSION_DENIED: PermissionDenied,
    _CODE.FAILED_PRECONDITION: ConfigError,
    _CODE.RESOURCE_EXHAUSTED: Overloaded,
    _CODE.UNAVAILABLE: Unavailable,
    _CODE.DEADLINE_EXCEEDED: DeadlineExceeded,
    _CODE.CANCELLED: Cancelled,
}


def error_from_rpc(failure: grpc.aio.AioRpcError) -> TandemError:
    """The TandemError that a failed call of grpc.aio stands for, as the server raised it."""
    code = failure.code()
    message = failure.details() or code.name
    trailers = dict(failure.trailing_metadata() or ())
    kind = error_class(str(trailers.get(CLASS_TRAILER, "")))
    if kind is None:
        # gRPC itself refuses a large message with the status that otherwise means overload.
        too_large = code is _CODE.RESOURCE_EXHAUSTED and "larger than max" in message
        kind = InvalidRequest if too_large else _BY_CODE.get(code, Internal)
    if issubclass(kind, InvalidRequest | NotFound):
        field = trailers.get(FIELD_TRAILER)
        return kind(message, field=None if field is None else str(field))
    return kind(message, retry_after_s=_retry_delay(trailers.get(_DETAILS_TRAILER)))


def _retry_delay(details: str | bytes | None) -> float | None:
    """Seconds of the `RetryInfo` in the details of a status; None where there is none."""
    if not isinstance(details, bytes):
        return None
    try:
        for detail in error_details_pb2.StatusDetails.FromString(details).details:
            if detail.type_url.rpartition("/")[2] == _RETRY_INFO:
                delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
                return max(0.0, delay.ToNanoseconds() / 1e9)
    except DecodeError:
        pass
    return None
