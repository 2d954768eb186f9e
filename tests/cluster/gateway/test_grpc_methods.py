"""Messages that cannot be parsed get a status of the client's, whatever the service."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress

import grpc
import grpc.aio
import pytest
from grpc_reflection.v1alpha import reflection, reflection_pb2

from cluster.api.off_loop import MEDIUM_BYTES
from cluster.gateway.grpc_methods import (
    Received,
    answering,
    method_handler,
    reflection_handler,
)
from engine.errors import InvalidRequest
from protos import router_pb2
from tandem_client.errors import CLASS_TRAILER

ADMIN = "tandem.internal.v1.Admin"


async def answer(request: Received[router_pb2.RolloutRequest], context):
    """Answers with the length of the text that came."""
    async with answering(context):
        message = await request.read()
        return router_pb2.RolloutResponse(id=str(len(message.configuration)))


@pytest.fixture
async def channel():
    server = grpc.aio.server()
    form = grpc.unary_unary_rpc_method_handler
    methods = {"Rollout": method_handler(form, answer, router_pb2.RolloutRequest)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(ADMIN, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as opened:
        yield opened
    await server.stop(0)


@pytest.mark.parametrize("message", [b"\xff", b"\x0a\x05a", b"\xff" * (MEDIUM_BYTES + 1)])
async def test_wrong_bytes_are_an_invalid_argument(channel, message):
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await channel.unary_unary(f"/{ADMIN}/Rollout")(message)
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert failed.value.details() == "the request is not a valid message; is its text UTF-8?"
    assert (CLASS_TRAILER, "InvalidRequest") in tuple(failed.value.trailing_metadata())


@pytest.mark.parametrize("size", [0, 100, MEDIUM_BYTES + 1])
async def test_a_message_of_any_size_arrives(channel, size):
    message = router_pb2.RolloutRequest(configuration="a" * size).SerializeToString()
    answer = await channel.unary_unary(f"/{ADMIN}/Rollout")(message)
    assert router_pb2.RolloutResponse.FromString(answer).id == str(size)


async def test_a_refused_call_leaves_no_cycle_that_keeps_its_message():
    kept = []

    class Body:
        """A message."""

    class Refusing:
        async def abort(self, *_):
            raise grpc.aio.AbortError

    async def call():
        body = Body()
        kept.append(weakref.ref(body))
        async with answering(Refusing()):
            raise InvalidRequest("wrong")

    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            with suppress(grpc.aio.AbortError):
                await call()
        assert not any(reference() for reference in kept)
    finally:
        gc.enable()


async def test_reflection_parses_no_large_question_of_a_stranger():
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((reflection_handler((ADMIN,)),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    # Each pair of bytes is an empty question that replaces the one before.
    large = b"\x2a\x00\x1a\x00" * 1025
    small = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"
        call = channel.stream_stream(method)(iter([large, small]))
        answers = [reflection_pb2.ServerReflectionResponse.FromString(one) async for one in call]
    await server.stop(0)
    assert answers[0].error_response.error_code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert not answers[0].original_request.ByteSize()
    assert [one.name for one in answers[1].list_services_response.service] == [ADMIN]
