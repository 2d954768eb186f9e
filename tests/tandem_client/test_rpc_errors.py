"""The retry time of a refusal, as any gRPC server sends it."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import DebugInfo, RetryInfo
from google.rpc.status_pb2 import Status

from tandem_client import Overloaded
from tandem_client.rpc_errors import error_from_rpc


def refused(*trailers: tuple[str, str | bytes]) -> float | None:
    """The retry time of a refused call with these trailers."""
    metadata = grpc.aio.Metadata(*trailers)
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    error = error_from_rpc(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, "full"))
    assert type(error) is Overloaded
    return error.retry_after_s


def details(*messages: DebugInfo | RetryInfo) -> tuple[str, bytes]:
    status = Status(code=8, message="full")
    for message in messages:
        packed = Any()
        packed.Pack(message)
        status.details.append(packed)
    return "grpc-status-details-bin", status.SerializeToString()


def test_the_retry_info_is_found_among_other_details():
    delay = RetryInfo(retry_delay=Duration(seconds=2, nanos=500_000_000))
    assert refused(details(DebugInfo(detail="x"), delay)) == 2.5


@pytest.mark.parametrize(
    "trailer",
    [details(), details(DebugInfo(detail="x")), ("grpc-status-details-bin", b"\xff\xff"), None],
)
def test_a_status_without_one_has_no_retry_time(trailer):
    assert refused(*([] if trailer is None else [trailer])) is None


def test_a_negative_time_is_none_at_all():
    assert refused(details(RetryInfo(retry_delay=Duration(seconds=-3)))) == 0.0
