"""Every field of every request form, with values that no client should send.

The fields come from the schema. No value makes a fault of the server, and a refusal names its
field.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from websockets.asyncio.client import connect

from cluster.gateway import grpc_server
from cluster.gateway.http_app import create_app
from cluster.gateway.messages.requests import CountRequest, MessagesRequest
from cluster.gateway.openai_fields import IGNORED, REFUSED
from cluster.gateway.openai_requests import ChatRequest, CompletionRequest
from cluster.gateway.responses import requests as responses
from engine.text.tokenizer import Tokenizer
from tandem_client.errors import FIELD_TRAILER
from tandem_client.protos import inference_pb2 as wire
from tests import tiny
from tests.cluster.gateway.http_listener import AS_JSON, CHAT, HELLO, TEXT, front_end, metrics
from tests.cluster.router.checked_generator import CheckedGenerator

HUGE = 10**400
LONG = "a b\n" * 10_000
NUMBERS = (HUGE, -HUGE, 2**31, 2**32, 2**63, 2**64, -(2**63), -1, 0, 1e308, -1e308, 0.5, True)
TEXTS = ("", "\0", "\ud800", "\r\nx: y", LONG, "\U0001f600" * 10_000)
LISTS = ([], [HUGE], [True], [None], ["\ud800"], [LONG], [[]], [{}], [1] * 3000, ["a"] * 3000)
OBJECTS = ({}, {"a": HUGE}, {LONG: 1}, {"1": HUGE}, {"1": True}, {str(i): 1 for i in range(3000)})
DEEP = json.loads("[" * 200 + "]" * 200)
VALUES = (None, *NUMBERS, *TEXTS, *LISTS, *OBJECTS, DEEP)
# Where the value is fine, and another field is then wrong beside it.
BESIDE = {
    "echo": {"max_tokens", "stream"},
    "progress": {"stream"},
    "max_completion_tokens": {"max_tokens"},
    "n": {"prompt"},
    "instructions": {"input"},
}
FORMS = {
    "chat": (CHAT, HELLO, sorted({*ChatRequest.model_fields, *IGNORED, *REFUSED})),
    "completion": (
        TEXT,
        {"prompt": "a"},
        sorted({*CompletionRequest.model_fields, *IGNORED, *REFUSED}),
    ),
}
RESPONSE_FIELDS = sorted(
    {*responses.ResponseRequest.fields(), *responses.IGNORED, *responses.REFUSED}
)
HTTP_FORMS = FORMS | {"response": ("/v1/responses", {"input": "a"}, RESPONSE_FIELDS)}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tiny")
    tiny.make(folder)
    return Tokenizer.load(str(folder))


@pytest.fixture
async def generator(tokenizer) -> AsyncIterator[CheckedGenerator]:
    generator = CheckedGenerator(tokenizer)
    yield generator
    await generator.preprocessor.grammars.close()


def check(status: int, error: dict[str, str | None], field: str, value: object) -> None:
    """A refusal of a client's error that names the field, in a bounded message."""
    shown = f"{field}: {value!r:.60}"
    assert status in (400, 404), (shown, error)
    root = (error["param"] or "").partition("[")[0].partition(".")[0]
    assert root in {field, *BESIDE.get(field, ())}, (shown, error)
    assert len(error["message"] or "") < 1000, shown


@pytest.mark.parametrize("form", HTTP_FORMS)
async def test_http_names_the_field(generator, form):
    path, valid, fields = HTTP_FORMS[form]
    headers = {"content-type": "application/json"}
    transport = httpx.ASGITransport(create_app(generator, metrics))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for field in fields:
            for value in VALUES:
                body = json.dumps(valid | {field: value})
                response = await client.post(path, content=body, headers=headers)
                if response.status_code != 200:
                    check(response.status_code, response.json()["error"], field, value)


MESSAGE = {"model": "demo", "max_tokens": 2, **HELLO}
BLOCKS = [
    {"role": "user", "content": [{"type": "text", "text": "a", "citations": None}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "b"},
            {"type": "tool_use", "id": "c", "name": "d", "input": {"e": 1}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "c",
                "content": [{"type": "text", "text": "f"}],
                "is_error": False,
            }
        ],
    },
]
FULL = MESSAGE | {
    "messages": BLOCKS,
    "system": [{"type": "text", "text": "a"}],
    "tools": [{"name": "d", "description": "g", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "tool", "name": "d", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 9, "display": "omitted"},
    "output_config": {"effort": "low"},
    "metadata": {"user_id": "h"},
    "stop_sequences": ["i"],
}


def odd_bodies(value: Any, odd: object) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Copies of a document with `odd` in one place each, and the fields on the way to it."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in pairs:
        name = (key,) if isinstance(key, str) else ()
        copy = dict(value) if isinstance(value, dict) else list(value)
        copy[key] = odd
        yield name, copy
        if isinstance(one, dict | list):
            for path, inner in odd_bodies(one, odd):
                copy = dict(value) if isinstance(value, dict) else list(value)
                copy[key] = inner
                yield (*name, *path), copy


async def test_messages_name_the_field(generator):
    transport = httpx.ASGITransport(create_app(generator, metrics))
    fields = {*MessagesRequest.model_fields, "cache_control", "container", "mcp_servers"}
    seen = 0
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers=AS_JSON
    ) as client:
        for odd in VALUES:
            bodies = [((field,), MESSAGE | {field: odd}) for field in sorted(fields)]
            if not isinstance(odd, str) or len(odd) < 9:
                bodies += odd_bodies(FULL, odd)
            for path, body in bodies:
                response = await client.post("/v1/messages", content=json.dumps(body))
                seen += 1
                if response.status_code == 200:
                    continue
                shown, error = f"{path}: {odd!r:.60}", response.json()["error"]
                assert response.status_code in (400, 404), (shown, error)
                assert error["type"] in ("invalid_request_error", "not_found_error")
                words = (*path, "prompt is too long")
                named = any(word in error["message"] for word in words)
                assert named, (shown, error)
                assert len(error["message"]) < 1000
        for field in CountRequest.model_fields:
            body = json.dumps({"model": "demo", **HELLO, field: HUGE})
            found = await client.post("/v1/messages/count_tokens", content=body)
            assert found.status_code == 400 and field in found.json()["error"]["message"]
        whole = await client.post("/v1/messages", content=json.dumps(FULL))
        assert whole.status_code == 200, whole.text
    assert seen > 500


@pytest.mark.parametrize("form", FORMS)
async def test_a_websocket_names_the_field(generator, form):
    _, valid, fields = FORMS[form]
    async with (
        front_end(generator) as port,
        connect(f"ws://127.0.0.1:{port}/v1/stream", compression=None) as socket,
    ):
        for field in fields:
            for value in (*NUMBERS, "", "\ud800", [HUGE], {"a": HUGE}, LONG):
                odd = valid | {field: value, "id": "i", "type": form}
                await socket.send(json.dumps(odd))
                while (message := json.loads(await socket.recv()))["type"] not in ("error", "end"):
                    pass
                if message["type"] == "error":
                    check(message["status"], message["error"], field, value)


WIRE_VALUES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), -2, -1, 0, 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 1, 129, 2**31, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**63, 2**64 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: (math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324),
    FieldDescriptor.CPPTYPE_BOOL: (True,),
    FieldDescriptor.CPPTYPE_ENUM: (0, 1, 99),
    FieldDescriptor.CPPTYPE_STRING: ("", "\0", "\r\nx: y", LONG, "\U0001f600" * 10_000),
}


def odd_messages(message: Message) -> Iterator[tuple[str, Message]]:
    """Copies of a message, each with an odd value in one field, and the path of that field."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for value in ({2**32 - 1: 1.0}, {1: math.nan}, dict.fromkeys(range(3000), 1.0)):
                copy = _copy(message)
                getattr(copy, field.name).update(value)
                yield field.name, copy
        elif field.message_type is not None:
            yield from _odd_inside(message, field)
        else:
            for value in WIRE_VALUES[field.cpp_type]:
                copy = _copy(message)
                if field.is_repeated:
                    getattr(copy, field.name).extend([value] * (3000 if value == 1 else 1))
                else:
                    setattr(copy, field.name, value)
                yield field.name, copy


def _odd_inside(message: Message, field: FieldDescriptor) -> Iterator[tuple[str, Message]]:
    if field.is_repeated:
        copy = _copy(message)
        for _ in range(3000):
            getattr(copy, field.name).add()
        yield field.name, copy
    empty = getattr(_copy(message), field.name)
    inner = empty.add() if field.is_repeated else empty
    for name, odd in odd_messages(inner):
        copy = _copy(message)
        inside = getattr(copy, field.name)
        (inside.add() if field.is_repeated else inside).CopyFrom(odd)
        yield f"{field.name}.{name}", copy


def _copy(message: Message) -> Message:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


CALLS = (
    ("Generate", wire.GenerateRequest(text="a")),
    ("Score", wire.ScoreRequest(inputs=[wire.ScoreInput(text="a b")])),
    ("Resume", wire.ResumeRequest(stream_id="s", have=[1])),
    ("Cancel", wire.CancelRequest(request_id="r")),
)


@pytest.mark.parametrize(("method", "valid"), CALLS, ids=[name for name, _ in CALLS])
async def test_grpc_names_the_field(generator, method, valid):
    server = await grpc_server.start(generator)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            call = channel.unary_stream(f"/tandem.v1.Inference/{method}")
            seen = 0
            for path, message in odd_messages(valid):
                code, details, field = await _outcome(call, message.SerializeToString())
                known = (grpc.StatusCode.OK, *REFUSALS)
                assert code in known, (path, code, details)
                assert code is grpc.StatusCode.OK or field, (path, code, details)
                assert len(details) < 1000
                seen += 1
            assert seen >= 5
    finally:
        await server.stop(0)


REFUSALS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)


async def _outcome(call, message: bytes) -> tuple[grpc.StatusCode, str, str]:
    """The status, its text, and the field that it names."""
    try:
        async for _ in call(message):
            pass
    except grpc.aio.AioRpcError as error:
        trailers = {key: str(value) for key, value in error.trailing_metadata() or ()}
        return error.code(), error.details() or "", trailers.get(FIELD_TRAILER, "")
    return grpc.StatusCode.OK, "", ""


@pytest.mark.parametrize("method", ["Generate", "Resume", "Score", "Cancel", "GetModel"])
@pytest.mark.parametrize(
    "message",
    [b"\xff", b"\x08\x80", b"\x40" + b"\xff" * 11, b"\x0b" * 5000],
    ids=["bytes", "half", "integer", "groups"],
)
async def test_grpc_refuses_wrong_bytes(generator, method, message):
    server = await grpc_server.start(generator)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            call = channel.unary_stream(f"/tandem.v1.Inference/{method}")
            code, details, _ = await _outcome(call, message)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert details == "the request is not a valid message; is its text UTF-8?"
    finally:
        await server.stop(0)
