"""The WebSocket front end over real sockets: generations, cancels, bad input, limits, endings."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from cluster.api import TextPrompt
from cluster.api.limits import MAX_REQUEST_BYTES
from cluster.gateway import uvicorn_server as http_server
from cluster.gateway import websocket_session
from cluster.tenants.api_keys import FileKeys
from engine.errors import Overloaded
from tests.cluster.gateway.http_listener import front_end
from tests.eventually import eventually

PATH = "/v1/stream"
HELLO = {"type": "chat", "messages": [{"role": "user", "content": "hello there"}]}
TEXT = {"type": "completion", "prompt": "hello there"}


@asynccontextmanager
async def opened(generator, headers=None, **options) -> AsyncIterator[ClientConnection]:
    async with (
        front_end(generator, **options) as port,
        connect(f"ws://127.0.0.1:{port}{PATH}", additional_headers=headers or {}) as socket,
    ):
        yield socket


@pytest.fixture
async def socket(generator) -> AsyncIterator[ClientConnection]:
    async with opened(generator) as found:
        yield found


async def say(socket, document):
    await socket.send(document if isinstance(document, bytes | str) else json.dumps(document))


async def until_ends(socket, count=1):
    """The messages by id, until so many of the generations have ended."""
    had: dict[str | None, list[dict]] = {}
    async with asyncio.timeout(30):
        while count:
            message = json.loads(await socket.recv())
            had.setdefault(message.pop("id"), []).append(message)
            count -= message["type"] in ("end", "error")
    return had


async def failure(socket, document):
    await say(socket, document)
    ((name, (message,)),) = (await until_ends(socket)).items()
    assert message["type"] == "error"
    return name, message["status"], message["error"]


async def test_a_generation_from_beginning_to_end(socket, generator):
    await say(socket, HELLO | {"id": "a", "max_tokens": 2, "seed": 5, "request_id": "mine"})
    (messages,) = (await until_ends(socket)).values()
    assert messages == [
        {
            "type": "started",
            "prompt": 0,
            "request_id": "mine",
            "model": "demo",
            "prompt_tokens": 2,
            "seed": 5,
        },
        {
            "type": "tokens",
            "choice": 0,
            "index": 0,
            "ids": [0],
            "text": "one",
            "finish_reason": None,
        },
        {
            "type": "tokens",
            "choice": 0,
            "index": 1,
            "ids": [1],
            "text": " two",
            "finish_reason": "length",
        },
        {
            "type": "end",
            "usage": {
                "prompt_tokens": 2,
                "completion_tokens": 2,
                "total_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        },
    ]


async def test_the_end_has_the_times_where_they_are_asked_for(socket):
    await say(socket, HELLO | {"id": "a", "max_tokens": 2, "n": 2, "timing": True})
    (messages,) = (await until_ends(socket)).values()
    choices = messages[-1]["timing"]["choices"]
    assert [choice["choice"] for choice in choices] == [0, 1]
    assert choices[1]["stages"][0] == {"stage": "prefill", "begin_s": 0.1, "end_s": 0.3}


async def test_several_at_a_time_each_in_its_order(socket, generator):
    generator.pause_s = 0.001
    for number in range(10):
        kind = HELLO if number % 2 else TEXT
        await say(socket, kind | {"id": str(number), "max_tokens": 5 + number})
    had = await until_ends(socket, 10)
    assert had.keys() == {str(number) for number in range(10)}
    for name, messages in had.items():
        indices = [message["index"] for message in messages if message["type"] == "tokens"]
        assert indices == list(range(5 + int(name)))
        assert messages[-1]["type"] == "end"


async def test_prompts_and_choices_are_numbered_as_over_http(socket, generator):
    body = TEXT | {"id": "a", "prompt": ["x", "y"], "n": 2, "max_tokens": 2, "logprobs": 1}
    await say(socket, body)
    (messages,) = (await until_ends(socket)).values()
    assert [request.prompt for request in generator.requests] == [TextPrompt("x"), TextPrompt("y")]
    tokens = [message for message in messages if message["type"] == "tokens"]
    for choice in range(4):
        own = [message for message in tokens if message["choice"] == choice]
        assert "".join(message["text"] for message in own) == "one two"
        assert [message["logprobs"]["text_offset"] for message in own] == [[0], [3]]
    assert [m["prompt"] for m in messages if m["type"] == "started"] == [0, 1]
    assert messages[-1]["usage"]["completion_tokens"] == 8


async def test_progress_is_sent(socket):
    await say(socket, HELLO | {"id": "a", "progress": True, "max_tokens": 1})
    (messages,) = (await until_ends(socket)).values()
    told = [message for message in messages if message["type"] == "progress"]
    assert told == [
        {"type": "progress", "choice": 0, "stage": "queued", "position": 2, "wait_s": 1.25},
        {"type": "progress", "choice": 0, "stage": "prefill", "tokens": 1, "total_tokens": 2},
    ]


async def test_a_cancel_ends_one_and_no_other(socket, generator):
    generator.endless, generator.pause_s = True, 0.002
    for name in ("a", "b"):
        await say(socket, TEXT | {"id": name, "request_id": name})
    await eventually(lambda: len(generator.started) == 2)
    await say(socket, {"type": "cancel", "id": "a"})
    messages = (await until_ends(socket))["a"]
    assert messages[-1]["status"] == 499
    assert messages[-1]["error"]["code"] == "cancelled"
    await eventually(lambda: generator.closed == ["a"])
    assert await failure_among(socket, {"type": "cancel", "id": "a"}) == ("a", 404)
    # The id is free again.
    await say(socket, TEXT | {"id": "a", "request_id": "c"})
    await eventually(lambda: generator.started == ["a", "b", "c"])


async def failure_among(socket, document):
    """The error that a message gets, whatever runs beside it."""
    await say(socket, document)
    async with asyncio.timeout(30):
        while (message := json.loads(await socket.recv()))["type"] != "error":
            pass
    return message["id"], message["status"]


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_the_end_of_the_socket_cancels_everything(generator, end):
    generator.endless, generator.pause_s = True, 0.002
    async with opened(generator) as socket:
        for number in range(5):
            await say(socket, TEXT | {"id": str(number)})
        await eventually(lambda: len(generator.started) == 5)
        if end == "close":
            await socket.close()
        else:
            socket.transport.abort()
        await eventually(lambda: len(generator.closed) == 5)
    assert not generator.running


async def test_a_server_that_stops_ends_the_socket_and_what_runs(generator):
    generator.endless, generator.pause_s = True, 0.002
    async with front_end(generator) as port:
        socket = await connect(f"ws://127.0.0.1:{port}{PATH}")
        await say(socket, TEXT | {"id": "a"})
        await eventually(lambda: bool(generator.started))
    with pytest.raises(ConnectionClosed) as caught:
        while True:
            await socket.recv()
    assert caught.value.rcvd.code == 1012
    assert len(generator.closed) == 1


@pytest.mark.parametrize(
    ("message", "name", "field"),
    [
        ("{", None, None),
        ("[]", None, None),
        ("NaN", None, None),
        ("[" * 20_000, None, None),
        (b"{}", None, None),
        ({"type": "chat"}, None, "id"),
        ({"type": "chat", "id": 7}, None, "id"),
        ({"type": "chat", "id": ""}, None, "id"),
        ({"type": "chat", "id": "a b"}, None, "id"),
        ({"type": "chat", "id": "x" * 200}, None, "id"),
        ({"id": "a"}, "a", "type"),
        ({"id": "a", "type": "talk"}, "a", "type"),
        ({"id": "a", "type": ["chat"]}, "a", "type"),
        ({"id": "a", "type": "chat"}, "a", "messages"),
        ({"id": "a", "type": "completion"}, "a", "prompt"),
        ({"id": "a", "type": "cancel", "why": 1}, "a", "why"),
        (HELLO | {"id": "a", "temprature": 1}, "a", "temprature"),
        (HELLO | {"id": "a", "stream": False}, "a", "stream"),
        (HELLO | {"id": "a", "n": 1000}, "a", "n"),
        (HELLO | {"id": "a", "temperature": -1}, "a", "temperature"),
    ],
)
async def test_bad_messages_are_answered_by_name_and_harm_nothing(socket, message, name, field):
    found, status, error = await failure(socket, message)
    assert (found, status, error["param"]) == (name, 400, field)
    assert "\n" not in error["message"]
    await say(socket, HELLO | {"id": "after", "max_tokens": 1})
    assert (await until_ends(socket))["after"][-1]["type"] == "end"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["id", "type", "messages", "prompt", "n", "stream", "request_id"])
documents = values | st.dictionaries(names, values | st.sampled_from(["chat", "cancel", "a"]))


@given(documents)
@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_every_message_gets_an_answer(socket, document):
    await say(socket, json.dumps(document))
    (messages,) = (await until_ends(socket)).values()
    assert messages[-1]["type"] == "end" or messages[-1]["status"] in (400, 404)


async def test_the_headers_of_a_clients_tracing(generator):
    async with opened(generator, {"x-request-id": "my-trace-1"}) as socket:
        assert socket.response.headers["x-request-id"] == "my-trace-1"
        await say(socket, TEXT | {"id": "a"})
        await say(socket, TEXT | {"id": "b"})
        await until_ends(socket, 2)
    names = {request.request_id for request in generator.requests}
    assert len(names) == 2 and all(name.startswith("my-trace-1-") for name in names)


async def test_an_id_that_runs_is_refused_for_now(socket, generator):
    generator.endless, generator.pause_s = True, 0.002
    await say(socket, TEXT | {"id": "a"})
    assert await failure_among(socket, TEXT | {"id": "a"}) == ("a", 409)
    assert len(generator.started) == 1


async def test_generations_on_a_socket_are_bounded(socket, generator, monkeypatch):
    monkeypatch.setattr(websocket_session, "MOST_AT_ONCE", 3)
    generator.endless, generator.pause_s = True, 0.01
    for number in range(3):
        await say(socket, TEXT | {"id": str(number)})
    assert await failure_among(socket, TEXT | {"id": "3"}) == ("3", 429)
    await say(socket, {"type": "cancel", "id": "0"})
    await eventually(lambda: len(generator.closed) == 1)
    await eventually(lambda: len(generator.running) == 2)
    await say(socket, TEXT | {"id": "4"})
    await eventually(lambda: len(generator.started) == 4)


async def test_a_message_is_bounded(generator):
    async with opened(generator) as socket:
        with pytest.raises(ConnectionClosed) as caught:
            await say(socket, TEXT | {"id": "a", "prompt": "x" * MAX_REQUEST_BYTES})
            await socket.recv()
        assert caught.value.rcvd.code == 1009
    assert not generator.started


async def test_errors_have_the_codes_of_http_and_say_when_to_come_back(socket, generator):
    generator.error = Overloaded("full", retry_after_s=0.25)
    await say(socket, HELLO | {"id": "a"})
    (message,) = (await until_ends(socket))["a"]
    assert (message["status"], message["retry_after_ms"]) == (429, 250)
    assert message["error"] == {
        "message": "full",
        "type": "rate_limit_error",
        "param": None,
        "code": "overloaded",
    }
    generator.error = RuntimeError("secret")
    _, status, error = await failure(socket, HELLO | {"id": "b"})
    assert (status, error["message"]) == (500, "internal error")


def keys_in(tmp_path, *given):
    file = tmp_path / "keys.yaml"
    hashes = [hashlib.sha256(key.encode()).hexdigest() for key in given]
    file.write_text(json.dumps({"tenants": {"acme": hashes}}))
    return FileKeys(file)


async def test_a_key_is_asked_for_and_gives_the_tenant(generator, tmp_path):
    keys = keys_in(tmp_path, "good")
    with pytest.raises(InvalidStatus) as caught:
        async with opened(generator, keys=keys):
            pass
    assert caught.value.response.status_code == 401
    body = json.loads(caught.value.response.body)
    assert body["error"]["code"] == "invalid_api_key"
    headers = {"authorization": "Bearer good", "x-tandem-tenant": "other"}
    async with opened(generator, headers, keys=keys) as socket:
        await say(socket, HELLO | {"id": "a"})
        await until_ends(socket)
    assert generator.requests[0].tenant == "acme"


async def test_without_keys_the_tenant_is_a_name_and_pages_of_other_origins_stay_out(generator):
    async with opened(generator, {"x-tandem-tenant": "blue"}) as socket:
        await say(socket, HELLO | {"id": "a"})
        await until_ends(socket)
    assert generator.requests[0].tenant == "blue"
    with pytest.raises(InvalidStatus) as caught:
        async with opened(generator, {"origin": "https://elsewhere.example"}):
            pass
    assert caught.value.response.status_code == 403
    async with front_end(generator) as port:
        headers = {"origin": f"http://127.0.0.1:{port}"}
        async with connect(f"ws://127.0.0.1:{port}{PATH}", additional_headers=headers):
            pass


async def test_it_is_no_endpoint_of_plain_http_and_others_are_no_sockets(generator):
    async with front_end(generator) as port:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            assert (await client.get(PATH)).status_code == 404
        with pytest.raises(InvalidStatus) as caught:
            await connect(f"ws://127.0.0.1:{port}/v1/models")
        assert caught.value.response.status_code == 403


async def test_silence_is_filled_with_pings(generator, monkeypatch):
    assert http_server.PING_S == 10.0
    monkeypatch.setattr(http_server, "PING_S", 0.02)
    pings = []
    async with opened(generator) as socket:
        handle = socket.protocol.recv_frame
        monkeypatch.setattr(
            socket.protocol,
            "recv_frame",
            lambda frame: pings.append(frame.opcode.name) or handle(frame),
        )
        await eventually(lambda: pings.count("PING") >= 3)
