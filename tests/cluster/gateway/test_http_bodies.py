"""What the HTTP front end says of bodies that it cannot take; drawn ones never make a fault."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from cluster.gateway.http_app import create_app
from tests.cluster.gateway.http_listener import (
    AS_JSON,
    CHAT,
    HELLO,
    TEXT,
    asking,
    error_of,
    front_end,
    metrics,
    opened,
)
from tests.cluster.scripted_generator import ScriptedGenerator

LOCAL = "http://localhost"


@pytest.fixture
async def client(generator) -> AsyncIterator[httpx.AsyncClient]:
    async with asking(generator, max_body_bytes=64 * 1024) as opened_client:
        yield opened_client


@pytest.fixture
async def local(generator) -> AsyncIterator[httpx.AsyncClient]:
    """A client without sockets, for what no socket changes."""
    transport = httpx.ASGITransport(create_app(generator, metrics))
    async with httpx.AsyncClient(
        transport=transport, base_url=LOCAL, headers=AS_JSON
    ) as opened_client:
        yield opened_client


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "hi"}]}, "messages[0].tool_call_id"),
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
            "messages[0].tool_calls[0].function",
        ),
        ({"messages": [{"role": "user", "content": "a", "contents": 1}]}, "messages[0].contents"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        (HELLO | {"temperature": "warm"}, "temperature"),
        (HELLO | {"temperature": -1}, "temperature"),
        (HELLO | {"temperature": True}, "temperature"),
        (HELLO | {"top_p": -0.1}, "top_p"),
        (HELLO | {"presence_penalty": 3}, "presence_penalty"),
        (HELLO | {"top_k": -2}, "top_k"),
        (HELLO | {"top_k": 1.5}, "top_k"),
        (HELLO | {"min_p": 2}, "min_p"),
        (HELLO | {"repetition_penalty": 0}, "repetition_penalty"),
        (HELLO | {"max_tokens": 0}, "max_tokens"),
        (HELLO | {"max_tokens": "10"}, "max_tokens"),
        (HELLO | {"max_tokens": 2**40}, "max_tokens"),
        (HELLO | {"n": True}, "n"),
        (HELLO | {"n": -1}, "n"),
        (HELLO | {"n": 10**30}, "n"),
        (HELLO | {"seed": -(2**63) - 1}, "seed"),
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
        (HELLO | {"tools": [{}]}, "tools[0].function"),
        (HELLO | {"tool_choice": "required"}, "tool_choice"),
        (HELLO | {"reasoning_effort": "much"}, "reasoning_effort"),
        (HELLO | {"chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs"),
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
    error = error_of(await client.post(CHAT, json=HELLO | {field: "other" * 100}), 404)
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
    monkeypatch.setattr("cluster.gateway.json_body.READ_S", 0.1)
    async with (
        front_end(generator) as port,
        opened(port, CHAT, HELLO, length=1000) as (reader, _),
    ):
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")


KEYS = [
    "messages", "prompt", "model", "n", "stream", "stream_options", "max_tokens", "temperature",
    "top_p", "top_k", "min_p", "stop", "seed", "logprobs", "top_logprobs", "logit_bias",
    "repetition_penalty", "stop_token_ids", "ignore_eos", "endpoint", "request_id", "echo",
    "return_token_ids", "user", "tools", "best_of", "role", "content",
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


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(bodies | documents, st.sampled_from([CHAT, TEXT]))
def test_no_body_makes_a_fault(body, path):
    client = TestClient(create_app(ScriptedGenerator(), metrics), LOCAL, headers=AS_JSON)
    response = client.post(path, content=json.dumps(body))
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_make_a_fault(content):
    client = TestClient(create_app(ScriptedGenerator(), metrics), LOCAL, headers=AS_JSON)
    assert client.post(CHAT, content=content).status_code == 400


async def test_values_at_the_edge_of_openais_ranges_are_taken(client, generator):
    edges = {"top_p": 0, "top_k": -1, "seed": -1, "temperature": 2, "presence_penalty": -2}
    for name, value in edges.items():
        assert (await client.post(CHAT, json=HELLO | {name: value})).status_code == 200, name
    assert generator.requests[2].sampling.seed == 2**64 - 1


async def test_an_answer_without_text_is_an_empty_turn(client, generator):
    turns = [*HELLO["messages"], {"role": "assistant", "content": None}, *HELLO["messages"]]
    assert (await client.post(CHAT, json={"messages": turns})).status_code == 200
    assert generator.requests[0].prompt.messages[1].content == ""
    wrong = {"messages": [{"role": "user", "content": None}]}
    assert error_of(await client.post(CHAT, json=wrong), 400)["param"] == "messages[0].content"


async def test_an_encoded_body_is_refused_by_the_name_of_its_encoding(client):
    for encoding, status in (("gzip", 415), ("br, gzip", 415), ("identity", 200)):
        headers = {"content-encoding": encoding}
        reply = await client.post(CHAT, json=HELLO, headers=headers)
        assert reply.status_code == status
        if status == 415:
            assert encoding in error_of(reply, 415)["message"]
            assert reply.headers["accept-encoding"] == "identity"
