"""Messages that cannot be parsed get a status of the client's, in every unary service."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from cluster.api.off_loop import MEDIUM_BYTES
from cluster.gateway.grpc_methods import unary_service
from protos import router_pb2
from protos.status import CLASS_TRAILER, answers_errors

ADMIN = router_pb2.DESCRIPTOR.services_by_name["Admin"]


class EchoAdmin:
    """Answers with what it got."""

    @answers_errors
    async def Rollout(self, request, context):  # noqa: N802
        return router_pb2.RolloutResponse(id=str(len(request.configuration)))

    Status = Stop = GiveRole = Rollout


@pytest.fixture
async def channel():
    server = grpc.aio.server()
    unary_service(ADMIN, EchoAdmin())(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as opened:
        yield opened
    await server.stop(0)


@pytest.mark.parametrize("name", [method.name for method in ADMIN.methods])
@pytest.mark.parametrize("message", [b"\xff", b"\x0a\x05a", b"\xff" * (MEDIUM_BYTES + 1)])
async def test_wrong_bytes_are_an_invalid_argument(channel, name, message):
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await channel.unary_unary(f"/{ADMIN.full_name}/{name}")(message)
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert failed.value.details() == "the request is not a valid message; is its text UTF-8?"
    assert (CLASS_TRAILER, "InvalidRequest") in tuple(failed.value.trailing_metadata())


@pytest.mark.parametrize("size", [0, 100, MEDIUM_BYTES + 1])
async def test_a_message_of_any_size_arrives(channel, size):
    message = router_pb2.RolloutRequest(configuration="a" * size).SerializeToString()
    answer = await channel.unary_unary(f"/{ADMIN.full_name}/Rollout")(message)
    assert router_pb2.RolloutResponse.FromString(answer).id == str(size)
