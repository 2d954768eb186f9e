"""The retry time of an error in the form that gRPC clients know: `google.rpc.RetryInfo`.

It travels in `grpc-status-details-bin`, as `google.rpc.Status` with the call's own code and message
(https://grpc.io/docs/guides/error/, the richer error model).
"""

from __future__ import annotations

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from engine.errors import TandemError
from protos.status import one_line, trailers
from tandem_client.errors import retry_after

DETAILS_TRAILER = "grpc-status-details-bin"


def detailed_trailers(
    error: TandemError, code: grpc.StatusCode
) -> tuple[tuple[str, str | bytes], ...]:
    """The trailers of an error, with a `RetryInfo` if the error has a retry time."""
    plain = trailers(error)
    wait_s = retry_after(error)
    if wait_s is None:
        return plain
    delay = Duration()
    delay.FromMilliseconds(int(-(-wait_s * 1000 // 1)))
    detail = Any()
    detail.Pack(RetryInfo(retry_delay=delay))
    status = Status(code=code.value[0], message=one_line(error.message), details=[detail])
    return (*plain, (DETAILS_TRAILER, status.SerializeToString()))
