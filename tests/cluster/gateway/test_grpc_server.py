"""The gRPC front end, over real sockets."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from cluster.api.error_mapping import TABLE
from cluster.gateway.grpc_server import SERVICE, start
from engine import errors
from tandem_client.protos import inference_pb2, inference_pb2_grpc
from tests.eventually import eventually

Request = inference_pb2.GenerateRequest
Sampling = inference_pb2.Sampling


@pytest.fixture
async def channel(generator) -> AsyncIterator[grpc.aio.Channel]:
    server = await start(generator, max_message_bytes=64 * 1024)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as opened:
        yield opened
    await server.stop(0)


@pytest.fixture
def stub(channel) -> inference_pb2_grpc.InferenceStub:
    return inference_pb2_grpc.InferenceStub(channel)


async def events(stub, request, **options):
    return [event async for event in stub.Generate(request, **options)]


async def failure(stub, request) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await events(stub, request)
    return caught.value


async def test_a_stream_of_started_tokens_and_summary(stub, generator):
    got = await events(stub, Request(text="a b c", request_id="r1", n=2))
    kinds = [event.WhichOneof("event") for event in got]
    assert kinds == ["started", *["tokens"] * 8, "summary"]
    assert got[0].started.prompt_tokens == 3
    for choice in (0, 1):
        runs = [one.tokens for one in got[1:-1] if one.tokens.choice == choice]
        assert [run.index for run in runs] == [0, 1, 2, 3]
        assert "".join(run.text for run in runs) == "one two three four"
        assert runs[-1].finish_reason == inference_pb2.FINISH_REASON_LENGTH
    assert got[-1].summary.completion_tokens == 8
    assert generator.finished == ["r1"]


async def test_the_metadata_of_a_clients_tracing(stub, generator):
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    metadata = (("x-request-id", "my-trace-1"), ("traceparent", parent))
    for request_id in ("", "r1"):
        call = stub.Generate(Request(text="a", request_id=request_id), metadata=metadata)
        assert ("x-request-id", "my-trace-1") in tuple(await call.initial_metadata())
        assert [event async for event in call]
    first, second = generator.requests
    assert first.request_id.startswith("my-trace-1-") and second.request_id == "r1"
    assert first.trace.parent == parent


async def test_top_k_of_minus_one_arrives(stub, generator):
    await events(stub, Request(text="a", sampling=Sampling(top_k=-1, top_p=0)))
    assert (generator.requests[0].sampling.top_k, generator.requests[0].sampling.top_p) == (-1, 0)


async def test_heartbeats_are_events_of_their_own(stub, generator):
    generator.heartbeats = 2
    kinds = [event.WhichOneof("event") for event in await events(stub, Request(text="a"))]
    assert kinds == ["started", *["heartbeat"] * 2, *["tokens"] * 4, "summary"]


async def test_all_three_inputs(stub, generator):
    chat = inference_pb2.Chat(messages=[{"role": "user", "content": "hi"}])
    for request in (
        Request(text="hi"),
        Request(token_ids=inference_pb2.TokenIds(ids=[1, 2])),
        Request(chat=chat),
    ):
        assert (await events(stub, request))[-1].WhichOneof("event") == "summary"


async def test_the_model(stub):
    model = await stub.GetModel(inference_pb2.GetModelRequest())
    assert model.name == "demo"
    assert list(model.endpoints) == ["chat", "report"]


@pytest.mark.parametrize(
    ("request_", "code", "field"),
    [
        (Request(), "INVALID_ARGUMENT", "input"),
        (Request(text=""), "INVALID_ARGUMENT", "text"),
        (Request(token_ids={}), "INVALID_ARGUMENT", "token_ids"),
        (Request(token_ids={"ids": [2**32 - 1]}), "INVALID_ARGUMENT", "prompt"),
        (Request(chat={}), "INVALID_ARGUMENT", "chat.messages"),
        (
            Request(chat={"messages": [{"role": "wizard", "content": "hi"}]}),
            "INVALID_ARGUMENT",
            "chat.messages[0].role",
        ),
        (Request(text="a", model="other"), "NOT_FOUND", "model"),
        (Request(text="a", endpoint="other"), "NOT_FOUND", "endpoint"),
        (Request(text="a", n=1000), "INVALID_ARGUMENT", "n"),
        (Request(text="a", request_id="\n"), "INVALID_ARGUMENT", "request_id"),
        (
            Request(text="a", sampling=Sampling(temperature=math.nan)),
            "INVALID_ARGUMENT",
            "temperature",
        ),
        (
            Request(text="a", sampling=Sampling(temperature=math.inf)),
            "INVALID_ARGUMENT",
            "temperature",
        ),
        (Request(text="a", sampling=Sampling(top_p=1.5)), "INVALID_ARGUMENT", "top_p"),
        (Request(text="a", sampling=Sampling(max_tokens=0)), "INVALID_ARGUMENT", "max_tokens"),
        (
            Request(text="a", sampling=Sampling(max_tokens=2**32 - 1)),
            "INVALID_ARGUMENT",
            "max_tokens",
        ),
        (Request(text="a", sampling=Sampling(stop=[""])), "INVALID_ARGUMENT", "stop"),
        (Request(text="a", sampling=Sampling(logprobs=99)), "INVALID_ARGUMENT", "logprobs"),
        (
            Request(text="a", sampling=Sampling(logit_bias={9999: 1.0})),
            "INVALID_ARGUMENT",
            "logit_bias",
        ),
    ],
)
async def test_bad_input(stub, generator, request_, code, field):
    found = await failure(stub, request_)
    assert found.code().name == code
    assert "\n" not in found.details()
    assert dict(found.trailing_metadata())["tandem-field"] == field
    assert not generator.started


async def test_bytes_that_are_no_request(channel):
    call = channel.unary_stream(f"/{SERVICE}/Generate")
    invalid_utf8 = b"\x22\x02\xff\xfe"  # field 4, text
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call(invalid_utf8):
            pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "the request is not a valid message; is its text UTF-8?"


async def test_a_message_too_large(stub, generator):
    found = await failure(stub, Request(text="a" * 100_000))
    assert found.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in found.details()
    assert not generator.requests


@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("kind", TABLE)
async def test_each_error_before_and_after_the_first_event(stub, generator, kind, after):
    generator.error, generator.after = kind("what\nhappened"), after
    got = 0
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        call = stub.Generate(Request(text="a"))
        async for _ in call:
            got += 1
    assert got == after
    assert await call.code() is TABLE[kind].grpc
    assert await call.details() == "what happened"
    assert ("retry-after-ms" in (await call.trailing_metadata())) is kind.retryable
    assert len(generator.closed) == 1


async def test_a_fault_shows_no_more_than_that(stub, generator, caplog):
    generator.error, generator.after = ZeroDivisionError("secret"), 2
    found = await failure(stub, Request(text="a"))
    assert (found.code(), found.details()) == (grpc.StatusCode.INTERNAL, "internal error")
    assert "secret" in caplog.text


async def test_a_long_message_still_arrives(stub, generator):
    generator.error = errors.NotFound("é" * 20_000, field="é" * 20_000)
    found = await failure(stub, Request(text="a"))
    assert found.code() is grpc.StatusCode.NOT_FOUND
    assert len(found.details()) < 1000


async def test_the_client_cancels(stub, generator):
    generator.endless, generator.pause_s = True, 0.01
    call = stub.Generate(Request(text="a", request_id="r1"))
    await call.read()
    before = time.monotonic()
    call.cancel()
    await eventually(lambda: generator.closed == ["r1"])
    assert time.monotonic() - before < 10


@pytest.mark.parametrize("pause_s", [0.0, 30.0])
async def test_the_client_disconnects(generator, pause_s):
    server = await start(generator)
    generator.endless, generator.pause_s = True, pause_s
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.port}")
    call = inference_pb2_grpc.InferenceStub(channel).Generate(Request(text="a", request_id="r1"))
    await call.read()
    await channel.close()
    await eventually(lambda: generator.closed == ["r1"])
    await server.stop(0)


async def test_the_clients_deadline_ends_the_request(stub, generator):
    generator.endless, generator.pause_s = True, 30.0
    await stub.GetModel(inference_pb2.GetModelRequest())  # so that it is connected
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await events(stub, Request(text="a", request_id="r1"), timeout=1.0)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await eventually(lambda: generator.closed == ["r1"])


async def test_a_call_whose_client_reads_nothing_ends(generator):
    server = await start(generator, stall_s=0.3)
    generator.endless = True
    fixed_window = [("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", fixed_window) as channel:
        call = inference_pb2_grpc.InferenceStub(channel).Generate(
            Request(text="a", request_id="r1")
        )
        await call.read()
        await eventually(lambda: generator.closed == ["r1"])
        call.cancel()
    await server.stop(0)


async def test_cancel_by_id(stub, generator):
    generator.endless, generator.pause_s = True, 0.01
    call = stub.Generate(Request(text="a", request_id="r1"))
    await call.read()
    assert (await stub.Cancel(inference_pb2.CancelRequest(request_id="r1"))).found
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        while await call.read() is not grpc.aio.EOF:
            pass
    assert await call.code() is grpc.StatusCode.CANCELLED
    assert not (await stub.Cancel(inference_pb2.CancelRequest(request_id="r1"))).found
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Cancel(inference_pb2.CancelRequest())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_health_follows_the_pools(channel, generator):
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", SERVICE):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    generator.gone = ("decode",)
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    generator.gone = ()
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()


async def test_reflection_names_the_services(channel):
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    answer = await call.read()
    names = {service.name for service in answer.list_services_response.service}
    assert names == {SERVICE, "grpc.health.v1.Health"}
    call.cancel()


async def test_a_taken_port_is_one_clear_line(generator):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(errors.ConfigError) as caught:
            await start(generator, port=port)
    assert caught.value.message == f"cannot listen on 127.0.0.1:{port}: address already in use"


async def test_two_servers_do_not_share_a_port_unless_asked(generator):
    first = await start(generator)
    with pytest.raises(errors.ConfigError):
        await start(generator, port=first.port)
    await first.stop(0)
    one = await start(generator, reuse_port=True)
    two = await start(generator, port=one.port, reuse_port=True)
    assert one.port == two.port
    await one.stop(0)
    await two.stop(0)


async def test_an_address_that_is_not_ours(generator):
    with pytest.raises(errors.ConfigError, match=r"cannot listen on 203\.0\.113\.1:0"):
        await start(generator, host="203.0.113.1")
