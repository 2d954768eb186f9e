"""Resumable streams over gRPC: the rest of one from any router, and its end."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from cluster.gateway.grpc_server import start
from cluster.tenants.api_keys import FileKeys
from tandem_client.protos import inference_pb2, inference_pb2_grpc
from tests.cluster.scripted_generator import ScriptedGenerator
from tests.eventually import eventually

Request = inference_pb2.GenerateRequest
Resume = inference_pb2.ResumeRequest
Cancel = inference_pb2.CancelRequest


@pytest.fixture
async def stub(generator) -> AsyncIterator[inference_pb2_grpc.InferenceStub]:
    server = await start(generator)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as opened:
        yield inference_pb2_grpc.InferenceStub(opened)
    await server.stop(0)


@pytest.fixture
async def other(generator) -> AsyncIterator[inference_pb2_grpc.InferenceStub]:
    """Another router with the same journal."""
    server = await start(ScriptedGenerator(journal=generator.journal))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as opened:
        yield inference_pb2_grpc.InferenceStub(opened)
    await server.stop(0)


async def refused(call) -> tuple[str, str]:
    """The code of a failed call and the field that it names."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if hasattr(call, "read"):
            async for _ in call:
                pass
        else:
            await call
    trailers = dict(caught.value.trailing_metadata())
    return caught.value.code().name, trailers.get("tandem-field", "")


async def test_the_rest_comes_from_another_router_exactly_once(stub, other):
    wanted = Request(text="a b", n=2, resumable=True)
    whole = [event async for event in stub.Generate(wanted)]
    stream_id = whole[0].started.stream_id
    assert stream_id
    tokens = [event for event in whole if event.HasField("tokens")]
    for cut in range(len(tokens) + 1):
        have = [0, 0]
        for event in tokens[:cut]:
            have[event.tokens.choice] += len(event.tokens.ids)
        rest = [event async for event in other.Resume(Resume(stream_id=stream_id, have=have))]
        assert rest == [whole[0], *tokens[cut:], whole[-1]]


async def test_a_stream_goes_on_where_its_call_broke(stub, other, generator):
    generator.endless, generator.pause_s = True, 0.005
    call = stub.Generate(Request(text="a", resumable=True))
    stream_id = (await call.read()).started.stream_id
    call.cancel()
    await eventually(lambda: not generator.journal.followers)
    again = other.Resume(Resume(stream_id=stream_id))
    await again.read()
    for index in range(20):
        assert (await again.read()).tokens.index == index
    assert (await other.Cancel(Cancel(stream_id=stream_id))).found
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        while True:
            await again.read()
    assert not (await stub.Cancel(Cancel(stream_id=stream_id))).found
    assert generator.closed == [""]


async def test_a_request_that_is_not_resumable_has_no_stream_id(stub):
    events = [event async for event in stub.Generate(Request(text="a"))]
    assert events[0].started.stream_id == ""


async def test_what_cannot_be_resumed(stub, generator):
    started = await stub.Generate(Request(text="a", resumable=True)).read()
    known = started.started.stream_id
    for wanted, answer in (
        (Resume(stream_id=""), ("INVALID_ARGUMENT", "stream_id")),
        (Resume(stream_id="a b"), ("INVALID_ARGUMENT", "stream_id")),
        (Resume(stream_id="a" * 129), ("INVALID_ARGUMENT", "stream_id")),
        (Resume(stream_id=known, have=[0] * 129), ("INVALID_ARGUMENT", "have")),
        (Resume(stream_id=known, have=[0, 1]), ("INVALID_ARGUMENT", "have")),
        (Resume(stream_id="unknown"), ("NOT_FOUND", "stream_id")),
    ):
        assert await refused(stub.Resume(wanted)) == answer


async def test_what_cannot_be_cancelled(stub):
    both = Cancel(stream_id="s", request_id="r")
    assert await refused(stub.Cancel(both)) == ("INVALID_ARGUMENT", "stream_id")
    assert await refused(stub.Cancel(Cancel())) == ("INVALID_ARGUMENT", "request_id")
    odd = Cancel(stream_id="a/b")
    assert await refused(stub.Cancel(odd)) == ("INVALID_ARGUMENT", "stream_id")


async def test_a_stream_belongs_to_its_tenant(generator, tmp_path):
    file = tmp_path / "keys.yaml"
    tenants = {name: [hashlib.sha256(name.encode()).hexdigest()] for name in ("acme", "other")}
    file.write_text(json.dumps({"tenants": tenants}))
    server = await start(generator, keys=FileKeys(file))
    generator.endless, generator.pause_s = True, 0.005
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        acme, other = ((("authorization", f"Bearer {name}"),) for name in ("acme", "other"))
        call = stub.Generate(Request(text="a", resumable=True), metadata=acme)
        stream_id = (await call.read()).started.stream_id
        wanted, end = Resume(stream_id=stream_id), Cancel(stream_id=stream_id)
        assert await refused(stub.Resume(wanted)) == ("UNAUTHENTICATED", "")
        assert await refused(stub.Resume(wanted, metadata=other)) == ("NOT_FOUND", "stream_id")
        assert not (await stub.Cancel(end, metadata=other)).found
        assert (await stub.Resume(wanted, metadata=acme).read()).started.stream_id == stream_id
        assert (await stub.Cancel(end, metadata=acme)).found
    await server.stop(0)
