"""A refusal says when to come back in the form that any gRPC client can read."""

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from cluster.admission.policy import Refuse
from cluster.admission.refusals import Refused
from cluster.api.error_mapping import http_error
from cluster.gateway.grpc_retry_info import DETAILS_TRAILER, detailed_trailers
from cluster.gateway.grpc_server import start
from engine.errors import InvalidRequest, Overloaded
from tandem_client.protos import inference_pb2, inference_pb2_grpc
from tandem_client.rpc_errors import error_from_rpc
from tests.cluster.scripted_generator import ScriptedGenerator


async def test_a_refusal_over_the_wire():
    generator = ScriptedGenerator()
    generator.error, generator.after = Refused.by(Refuse("ttft", 1.2345), 0.45), 0
    server = await start(generator)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in stub.Generate(inference_pb2.GenerateRequest(text="a")):
                    pass
    finally:
        await server.stop(0)
    failure = caught.value
    trailers = dict(failure.trailing_metadata())
    status, info = Status.FromString(trailers[DETAILS_TRAILER]), RetryInfo()
    assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert (status.message, len(status.details)) == (failure.details(), 1)
    assert status.details[0].Unpack(info)
    assert info.retry_delay.ToMilliseconds() == 1235
    assert trailers["retry-after-ms"] == "1235"
    rebuilt = error_from_rpc(failure)
    assert type(rebuilt) is Overloaded and rebuilt.retry_after_s == 1.235


def test_a_refusal_over_http():
    status, body, headers = http_error(Refused.by(Refuse("itl", 1.2345), 0.45))
    assert status == 429 and body["error"]["code"] == "overloaded"
    assert headers == {"retry-after": "2", "retry-after-ms": "1235", "x-decided-ms": "450.0"}


def test_an_error_that_is_not_retryable_has_no_retry_info():
    trailers = dict(detailed_trailers(InvalidRequest("no"), grpc.StatusCode.INVALID_ARGUMENT))
    assert DETAILS_TRAILER not in trailers
