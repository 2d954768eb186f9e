"""The HTTP door over real sockets: bad input, limits, endings, and what lies around the API."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from cluster.gateway_http import create_app
from cluster.http_server import start
from engine.errors import ConfigError, Overloaded
from tests.cluster.http_door import door, metrics, opened
from tests.cluster.scripted_generator import ScriptedGenerator, eventually

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def generator() -> ScriptedGenerator:
    return ScriptedGenerator()


@pytest.fixture
async def client(generator) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        door(generator, max_body_bytes=64 * 1024) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as opened_client,
    ):
        yield opened_client


@pytest.fixture
async def local(generator) -> AsyncIterator[httpx.AsyncClient]:
    """A client without sockets, for what no socket changes."""
    transport = httpx.ASGITransport(create_app(generator, metrics))
    async with httpx.AsyncClient(transport=transport, base_url="http://local") as opened_client:
        yield opened_client


def error_of(response: httpx.Response, status: int) -> dict[str, str | None]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"]
    return error


async def test_the_bytes_of_a_stream(client):
    response = await client.post(CHAT, json=HELLO | {"stream": True, "request_id": "r1"})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"] == "r1"
    assert "content-length" not in response.headers
    *events, last = response.text.removesuffix("\n\n").split("\n\n")
    assert last == "data: [DONE]"
    first = json.loads(events[0].removeprefix("data: "))
    assert first["id"] == "chatcmpl-r1"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}


async def test_heartbeats_are_comments_in_a_stream_and_nothing_elsewhere(client, generator):
    generator.heartbeats = 2
    response = await client.post(CHAT, json=HELLO | {"stream": True})
    events = response.text.removesuffix("\n\n").split("\n\n")
    assert events[:2] == [": heartbeat"] * 2
    assert all(event.startswith("data: ") for event in events[2:])
    assert events[-1] == "data: [DONE]"
    whole = (await client.post(CHAT, json=HELLO)).json()
    assert whole["choices"][0]["message"]["content"] == "one two three four"


async def test_progress_is_a_comment_that_carries_json(client):
    response = await client.post(CHAT, json=HELLO | {"stream": True, "progress": True})
    told, events = [], []
    for event in response.text.removesuffix("\n\n").split("\n\n"):
        if event.startswith(": progress "):
            told.append(json.loads(event.removeprefix(": progress ")))
        else:
            events.append(event)
    assert told == [
        {"choice": 0, "stage": "queued", "position": 2, "wait_s": 1.25},
        {"choice": 0, "stage": "prefill", "tokens": 1, "total_tokens": 1},
    ]
    assert all(event.startswith("data: ") for event in events)
    refused = await client.post(CHAT, json=HELLO | {"progress": True})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "progress"


async def test_an_error_in_a_stream_ends_it_without_done(client, generator):
    generator.error, generator.after = RuntimeError("secret"), 2
    response = await client.post(CHAT, json=HELLO | {"stream": True})
    assert response.status_code == 200
    *_, last = response.text.removesuffix("\n\n").split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["message"] == "internal error"
    assert "[DONE]" not in response.text
    assert "secret" not in response.text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "function", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        (
            {"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]},
            "messages[0].tool_calls",
        ),
        ({"messages": [{"role": "user", "content": "a", "contents": 1}]}, "messages[0].contents"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        (HELLO | {"temperature": "warm"}, "temperature"),
        (HELLO | {"temperature": -1}, "temperature"),
        (HELLO | {"temperature": True}, "temperature"),
        (HELLO | {"top_p": 0}, "top_p"),
        (HELLO | {"presence_penalty": 3}, "presence_penalty"),
        (HELLO | {"top_k": -1}, "top_k"),
        (HELLO | {"top_k": 1.5}, "top_k"),
        (HELLO | {"min_p": 2}, "min_p"),
        (HELLO | {"repetition_penalty": 0}, "repetition_penalty"),
        (HELLO | {"max_tokens": 0}, "max_tokens"),
        (HELLO | {"max_tokens": "10"}, "max_tokens"),
        (HELLO | {"max_tokens": 2**40}, "max_tokens"),
        (HELLO | {"n": True}, "n"),
        (HELLO | {"n": -1}, "n"),
        (HELLO | {"n": 10**30}, "n"),
        (HELLO | {"seed": -1}, "seed"),
        (HELLO | {"seed": 2**64}, "seed"),
        (HELLO | {"stop": 5}, "stop"),
        (HELLO | {"stop": ["a", 5]}, "stop"),
        (HELLO | {"stop": ""}, "stop"),
        (HELLO | {"stop": ["\udc00"]}, "stop"),
        (HELLO | {"logit_bias": [1]}, "logit_bias"),
        (HELLO | {"logit_bias": {"the": 1}}, "logit_bias"),
        (HELLO | {"logit_bias": {"1": "x"}}, "logit_bias"),
        (HELLO | {"logit_bias": {"1": 1000}}, "logit_bias"),
        (HELLO | {"logit_bias": {"-1": 1}}, "logit_bias"),
        (HELLO | {"logit_bias": {"99999": 1}}, "logit_bias"),
        (HELLO | {"stop_token_ids": [True]}, "stop_token_ids"),
        (HELLO | {"stop_token_ids": 5}, "stop_token_ids"),
        (HELLO | {"stop_token_ids": [10**30]}, "stop_token_ids"),
        (HELLO | {"request_id": "two words"}, "request_id"),
        (HELLO | {"request_id": "a\r\nSet-Cookie: x"}, "request_id"),
        (HELLO | {"stream": "yes"}, "stream"),
        (HELLO | {"stream_options": {"include_usage": True}}, "stream_options"),
        (HELLO | {"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        (HELLO | {"logprobs": 2}, "logprobs"),
        (HELLO | {"model": 5}, "model"),
        (HELLO | {"model": "\ud800"}, "model"),
        (HELLO | {"tools": [{}]}, "tools"),
        (HELLO | {"echo": True}, "echo"),
        (HELLO | {"prompt": "x"}, "prompt"),
    ],
)
async def test_bad_chat_bodies(local, generator, body, param):
    error = error_of(await local.post(CHAT, content=json.dumps(body)), 400)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert not generator.started


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt[0]"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**30]}, "prompt"),
        ({"prompt": [2**31]}, "prompt"),
        ({"prompt": [1.0]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[1], 2]}, "prompt[1]"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 3, "n": 100}, "prompt"),
        ({"prompt": "a", "echo": True}, "max_tokens"),
        ({"prompt": "a", "echo": True, "max_tokens": 2}, "max_tokens"),
        ({"prompt": "a", "echo": True, "max_tokens": 0, "stream": True}, "stream"),
        ({"prompt": "a", "echo": True, "max_tokens": 0, "n": 2}, "n"),
        ({"prompt": "a", "echo": 1}, "echo"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "max_completion_tokens": 5}, "max_completion_tokens"),
    ],
)
async def test_bad_completion_bodies(local, generator, body, param):
    assert error_of(await local.post(TEXT, content=json.dumps(body)), 400)["param"] == param
    assert not generator.started


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        '{"messages": []}'.encode("utf-16"),
        b'{"temperature": NaN}',
        b'{"temperature": -Infinity}',
        b'{"temperature": 1e999, "messages": [{"role": "user", "content": "a"}]}',
        b'{"logit_bias": {"1": 1e999}, "messages": [{"role": "user", "content": "a"}]}',
        b'{"seed": ' + b"9" * 5000 + b"}",
        b"[" * 50_000,
    ],
)
async def test_bodies_that_are_no_json(client, generator, content):
    error_of(await client.post(CHAT, content=content), 400)
    assert not generator.started


async def test_the_nearest_field_is_suggested(client):
    error = error_of(await client.post(CHAT, json=HELLO | {"max_token": 5}), 400)
    assert error["message"] == "unknown field 'max_token'; did you mean max_tokens?"


@pytest.mark.parametrize("field", ["model", "endpoint"])
async def test_unknown_names(client, field):
    error = error_of(await client.post(CHAT, json=HELLO | {field: "other" * 1000}), 404)
    assert error["param"] == field
    assert len(error["message"]) < 1000


async def test_bodies_too_large(client, generator):
    for size in (64 * 1024 + 1, 300_000, 5_000_000):
        response = await client.post(CHAT, content=b" " * size)
        assert error_of(response, 413)["code"] == "request_too_large"

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 4096

    error_of(await client.post(CHAT, content=pieces()), 413)
    assert not generator.requests
    assert (await client.post(CHAT, json=HELLO)).status_code == 200


async def test_a_body_that_does_not_come(generator, monkeypatch):
    monkeypatch.setattr("cluster.http_body.READ_S", 0.1)
    async with door(generator) as port, opened(port, CHAT, HELLO, length=1000) as (reader, _):
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("stream", [False, True])
async def test_one_of_several_prompts_fails(client, generator, stream, after):
    fine = generator.generate

    async def second_fails(request):
        sent = 0
        async for event in fine(request):
            if request.request_id == "r-1" and sent == after:
                raise Overloaded("no room")
            yield event
            sent += 1

    generator.generate = second_fails
    generator.endless, generator.pause_s = True, 0.02
    body = {"prompt": ["a", "b", "c"], "request_id": "r", "stream": stream}
    response = await client.post(TEXT, json=body)
    begun = stream and after > 0
    assert response.status_code == (200 if begun else 429)
    assert "no room" in response.text
    assert "[DONE]" not in response.text
    await eventually(lambda: len(generator.closed) == len(generator.started), 1.0)


async def test_other_paths_and_methods(client):
    error_of(await client.get("/nowhere"), 404)
    error_of(await client.get("/v1/models/"), 404)
    wrong = await client.get(CHAT)
    error_of(wrong, 405)
    assert wrong.headers["allow"] == "POST"
    error_of(await client.delete("/v1/models"), 405)


async def test_health_and_metrics(client, generator):
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    generator.gone = ("prefill", "decode")
    response = await client.get("/healthz")
    assert response.status_code == 503
    assert response.json()["missing"] == ["prefill", "decode"]
    scrape = await client.get("/metrics")
    assert scrape.content == b"tandem_up 1\n"
    assert scrape.headers["content-type"] == "text/plain; version=0.0.4"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("pause_s", [0.001, 30.0])
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_client_that_disconnects_cancels(generator, path, pause_s, stream):
    generator.endless, generator.pause_s = True, pause_s
    prompt = HELLO if path == CHAT else {"prompt": ["a", "b"]}
    count = 1 if path == CHAT else 2
    async with door(generator) as port:
        async with opened(port, path, prompt | {"stream": stream}):
            await eventually(lambda: len(generator.started) == count)
            await asyncio.sleep(0.05)
            before = time.monotonic()
        await eventually(lambda: len(generator.closed) == count)
        assert time.monotonic() - before < 0.5
        assert not generator.finished


async def test_a_client_that_stops_reading_is_let_go(generator):
    generator.endless = True
    async with (
        door(generator, stall_s=0.3) as port,
        opened(port, CHAT, HELLO | {"stream": True}) as (_, writer),
    ):
        writer.transport.pause_reading()
        await eventually(lambda: len(generator.closed) == 1, 20.0)


async def test_a_client_that_leaves_while_it_sends(generator):
    async with door(generator) as port:
        async with opened(port, CHAT, HELLO, length=1000):
            await asyncio.sleep(0.05)
        async with httpx.AsyncClient() as client:
            url = f"http://127.0.0.1:{port}{CHAT}"
            assert (await client.post(url, json=HELLO)).status_code == 200
    assert len(generator.requests) == 1


async def test_the_first_token_is_sent_at_once(generator):
    generator.pause_s = 0.2
    async with (
        door(generator) as port,
        opened(port, CHAT, HELLO | {"stream": True, "max_tokens": 5}) as (reader, _),
    ):
        before = time.monotonic()
        await reader.readuntil(b'"content":"one"')
        assert time.monotonic() - before < 0.35


async def test_a_reply_that_ends_early_is_an_error(generator):
    async def cut_short(request):
        async for event in ScriptedGenerator().generate(request):
            if type(event).__name__ != "Summary":
                yield event

    generator.generate = cut_short
    async with door(generator) as port, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}{CHAT}"
        error_of(await client.post(url, json=HELLO), 500)
        text = (await client.post(url, json=HELLO | {"stream": True})).text
        assert "the reply ended early" in text
        assert "[DONE]" not in text


async def test_a_taken_port_is_one_clear_line(generator):
    app = create_app(generator, metrics)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            await start(app, port=port)
    assert caught.value.message == f"cannot listen on 127.0.0.1:{port}: address already in use"
    with pytest.raises(ConfigError):
        await start(app, host="203.0.113.1")
    with pytest.raises(ConfigError):
        await start(app, host="no.such.host.invalid")


async def test_two_servers_share_a_port_only_if_asked(generator):
    app = create_app(generator, metrics)
    one = await start(app, reuse_port=True)
    two = await start(app, port=one.port, reuse_port=True)
    assert one.port == two.port
    with pytest.raises(ConfigError):
        await start(app, port=one.port)
    await one.stop()
    await two.stop()


@pytest.mark.parametrize("grace_s", [0, 1])
async def test_stopping_ends_streams_after_the_grace(generator, grace_s):
    generator.endless, generator.pause_s = True, 0.01
    server = await start(create_app(generator, metrics), grace_s=30)
    async with opened(server.port, CHAT, HELLO | {"stream": True}):
        await eventually(lambda: len(generator.started) == 1)
        before = time.monotonic()
        await server.stop(grace_s)
        assert grace_s <= time.monotonic() - before < grace_s + 1.0
        assert len(generator.closed) == 1


KEYS = [
    "messages", "prompt", "model", "n", "stream", "stream_options", "max_tokens", "temperature",
    "top_p", "top_k", "min_p", "stop", "seed", "logprobs", "top_logprobs", "logit_bias",
    "repetition_penalty", "stop_token_ids", "ignore_eos", "endpoint", "request_id", "echo",
    "user", "tools", "best_of", "role", "content",
]  # fmt: skip
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**40), 10**40)
    | st.floats()
    | st.text(st.characters())
    | st.sampled_from(["demo", "user", "system", "tool", "chat"])
)
documents = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(st.characters()), inner, max_size=5)
    ),
    max_leaves=12,
)
bodies = st.builds(
    lambda valid, odd: valid | odd,
    st.sampled_from([HELLO, {"prompt": "a"}, {"prompt": [1, 2]}, {}]),
    st.dictionaries(st.sampled_from(KEYS), documents, max_size=4),
)


def test_the_tenant_is_a_header():
    generator = ScriptedGenerator()
    client = TestClient(create_app(generator, metrics))
    for headers in ({}, {"X-Tandem-Tenant": "acme.eu-1"}):
        assert client.post(CHAT, json=HELLO, headers=headers).status_code == 200
    assert [request.tenant for request in generator.requests] == ["default", "acme.eu-1"]
    refused = client.post(CHAT, json=HELLO, headers={"X-Tandem-Tenant": "a/b"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tenant"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(bodies | documents, st.sampled_from([CHAT, TEXT]))
def test_no_body_makes_a_fault(body, path):
    client = TestClient(create_app(ScriptedGenerator(), metrics))
    response = client.post(path, content=json.dumps(body))
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_make_a_fault(content):
    client = TestClient(create_app(ScriptedGenerator(), metrics))
    assert client.post(CHAT, content=content).status_code == 400
