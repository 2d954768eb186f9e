"""The HTTP front end over real sockets: streams, limits, endings, and what lies around the API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
from starlette.testclient import TestClient

from cluster.api import Heartbeat, Started, Summary, Tokens
from cluster.gateway.http_app import create_app
from cluster.router.event_buffer import EventBuffer
from engine.errors import InvalidRequest, Overloaded
from tests.cluster.gateway.http_listener import (
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
from tests.eventually import eventually


@pytest.fixture
async def client(generator) -> AsyncIterator[httpx.AsyncClient]:
    async with asking(generator, max_body_bytes=64 * 1024) as opened_client:
        yield opened_client


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


async def test_a_stream_of_events_without_text_is_never_silent_for_long(client, generator):
    async def textless(request):
        buffer, beaten = EventBuffer(heartbeat_s=0.05), asyncio.Event()
        clock = EventBuffer(heartbeat_s=0.01)
        buffer.put(Started(request.request_id, "demo", 1, 7))

        async def fill():
            index = 0
            while not beaten.is_set():
                buffer.put(Tokens(0, index, (1,), ""))
                index += 1
                await clock.get()
            buffer.put(Tokens(0, index, (1,), "end", "stop"))
            buffer.put(Summary(1, index + 1, (), 1.0))

        filling = asyncio.create_task(fill())
        while True:
            event = await buffer.get()
            if isinstance(event, Heartbeat):
                beaten.set()
            yield event
            if isinstance(event, Summary):
                break
        await filling
        buffer.close()
        clock.close()

    generator.generate = textless
    response = await client.post(CHAT, json=HELLO | {"stream": True})
    events = response.text.removesuffix("\n\n").split("\n\n")
    assert ": heartbeat" in events
    assert events[-1] == "data: [DONE]"


async def test_ids_come_also_where_there_is_no_text_yet(client, generator):
    generate = generator.generate

    async def held_back(request):
        async for event in generate(request):
            if isinstance(event, Tokens) and not event.finish_reason:
                event = replace(event, text="")
            yield event

    generator.generate = held_back
    response = await client.post(
        TEXT, json={"prompt": "a", "stream": True, "return_token_ids": True}
    )
    *events, _ = response.text.removesuffix("\n\n").split("\n\n")
    choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    assert [one["token_ids"] for one in choices] == [[0], [1], [2], [3], []]


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


async def test_a_refusal_behind_a_heartbeat_says_when_to_come_back(client, generator):
    generator.heartbeats, generator.after = 1, 2  # behind Started and the heartbeat
    generator.error = Overloaded("no capacity", retry_after_s=0.2501)
    response = await client.post(CHAT, json=HELLO | {"stream": True})
    assert response.status_code == 200 and "retry-after-ms" not in response.headers
    heartbeat, last = response.text.removesuffix("\n\n").split("\n\n")
    assert heartbeat == ": heartbeat"
    assert json.loads(last.removeprefix("data: "))["error"] == {
        "message": "no capacity",
        "type": "rate_limit_error",
        "param": None,
        "code": "overloaded",
        "retry_after_ms": 251,
    }
    generator.error = InvalidRequest("never")
    response = await client.post(CHAT, json=HELLO | {"stream": True})
    assert "never" in response.text and "retry_after_ms" not in response.text


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_the_last_text_of_a_stream_comes_before_its_finish_reason(client, path):
    body = {"stream": True, "max_tokens": 2, "stream_options": {"include_usage": True}}
    reply = await client.post(path, json=HELLO | body if path == CHAT else body | {"prompt": "a"})
    *chunks, usage = [json.loads(line[6:]) for line in reply.text.split("\n\n")[:-2]]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [one["finish_reason"] for one in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == "length"
    assert usage["usage"]["completion_tokens"] == 2
    if path == CHAT:
        assert [one["delta"].get("content") for one in choices] == ["", "one", " two", None]
        assert choices[-1]["delta"] == {}
    else:
        assert [one["text"] for one in choices] == ["one", " two", ""]


async def test_usage_comes_with_each_chunk_where_it_is_asked_for(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": ["a b", "c"], "n": 2, "max_tokens": 2, "stream": True}
    reply = await client.post(TEXT, json=body | {"stream_options": options})
    chunks = [json.loads(line[6:]) for line in reply.text.split("\n\n")[:-2]]
    assert all(chunk["usage"] for chunk in chunks)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[0] == 1 and counts[-1] == 8
    assert chunks[-2]["usage"]["prompt_tokens"] == 3 == chunks[-1]["usage"]["prompt_tokens"]
    alone = {"stream_options": {"continuous_usage_stats": True}}
    reply = await client.post(TEXT, json=body | alone)
    assert '"usage"' not in reply.text


@pytest.mark.parametrize("stream", [False, True])
async def test_the_times_of_each_choice_come_where_they_are_asked_for(client, stream):
    body = {"prompt": ["a b", "c"], "n": 2, "max_tokens": 2, "stream": stream}
    reply = await client.post(TEXT, json=body | {"timing": True})
    if stream:
        lines = reply.text.split("\n\n")[:-2]
        assert ["timing" in line for line in lines] == [False] * (len(lines) - 1) + [True]
        found = json.loads(lines[-1][6:])
        assert found["choices"] == [] and "usage" not in found
    else:
        found = reply.json()
    timing = found["timing"]
    assert timing["total_s"] == 1.5
    assert [choice["choice"] for choice in timing["choices"]] == [0, 1, 2, 3]
    for choice in timing["choices"]:
        assert (choice["prefill_replica"], choice["ttft_s"]) == ("p0", 0.35)
        assert choice["stages"][0] == {"stage": "prefill", "begin_s": 0.1, "end_s": 0.3}
    assert "timing" not in (await client.post(TEXT, json=body)).text


async def test_no_event_has_a_line_end_of_unicode(client, generator):
    ends = "\x85\u2028\u2029"

    async def lines(request):
        async for event in type(generator)().generate(request):
            yield replace(event, text=ends) if isinstance(event, Tokens) else event

    generator.generate = lines
    reply = await client.post(TEXT, json={"prompt": "a", "stream": True})
    for line in reply.text.splitlines():
        if line not in ("", "data: [DONE]"):
            assert json.loads(line[6:])["choices"][0]["text"] in (ends, "")
    whole = await client.post(TEXT, json={"prompt": "a"})
    assert len(whole.text.splitlines()) == 1
    assert whole.json()["choices"][0]["text"] == ends * 4


async def test_the_clients_own_request_id_comes_back(client, generator):
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    headers = {"x-request-id": "my-trace-1", "traceparent": parent}
    for body in (HELLO, HELLO | {"stream": True}, {"messages": []}):
        reply = await client.post(CHAT, json=body, headers=headers)
        assert reply.headers["x-request-id"] == "my-trace-1"
    first, second = generator.requests
    for request in (first, second):
        assert request.request_id.startswith("my-trace-1-")
        assert (request.trace.request_id, request.trace.parent) == ("my-trace-1", parent)
    # A proxy sends one id with several requests, which may run at once.
    assert first.request_id != second.request_id
    await client.post(CHAT, json=HELLO | {"request_id": "r1"}, headers=headers)
    assert generator.requests[-1].request_id == "r1"
    for wrong in ("with space", "x" * 200):
        reply = await client.post(CHAT, json=HELLO, headers={"x-request-id": wrong})
        assert reply.status_code == 200 and reply.headers["x-request-id"] != wrong


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("stream", [False, True])
async def test_one_of_several_prompts_fails(client, generator, stream, after):
    fine = generator.generate

    async def second_fails(request):
        sent = 0
        async for event in fine(request):
            if request.request_id == "r-1" and sent == after:
                raise Overloaded("no capacity")
            yield event
            sent += 1

    generator.generate = second_fails
    generator.endless, generator.pause_s = True, 0.02
    body = {"prompt": ["a", "b", "c"], "request_id": "r", "stream": stream}
    response = await client.post(TEXT, json=body)
    begun = stream and after > 0
    assert response.status_code == (200 if begun else 429)
    assert "no capacity" in response.text
    assert "[DONE]" not in response.text
    await eventually(lambda: len(generator.closed) == len(generator.started))


async def test_other_paths_and_methods(client):
    error_of(await client.get("/nowhere"), 404)
    assert (await client.get("/v1/models/")).json() == (await client.get("/v1/models")).json()
    wrong = await client.get(CHAT)
    error_of(wrong, 405)
    assert wrong.headers["allow"] == "POST"
    error_of(await client.delete("/v1/models"), 405)


async def test_health_and_metrics(client, generator):
    for path in ("/healthz", "/health"):
        assert (await client.get(path)).json() == {"status": "ok"}
    generator.ill = ("decode#1",)
    response = await client.get("/healthz")
    assert (response.status_code, response.json()["unhealthy"]) == (200, ["decode#1"])
    generator.gone = ("prefill", "decode")
    response = await client.get("/healthz")
    assert response.status_code == 503
    assert response.json()["missing"] == ["prefill", "decode"]
    scrape = await client.get("/metrics")
    assert scrape.content == b"tandem_up 1\n"
    assert scrape.headers["content-type"] == "text/plain; version=0.0.4"


async def test_the_first_token_is_sent_at_once(generator):
    generate = generator.generate

    async def one_token(request):
        async for event in generate(request):
            if isinstance(event, Tokens) and event.index:
                await asyncio.Event().wait()
            yield event

    generator.generate = one_token
    async with (
        front_end(generator) as port,
        opened(port, CHAT, HELLO | {"stream": True, "max_tokens": 5}) as (reader, _),
        asyncio.timeout(30),
    ):
        await reader.readuntil(b'"content":"one"')


def test_the_tenant_is_a_header():
    generator = ScriptedGenerator()
    client = TestClient(create_app(generator, metrics), "http://localhost")
    for headers in ({}, {"X-Tandem-Tenant": "acme.eu-1"}):
        assert client.post(CHAT, json=HELLO, headers=headers).status_code == 200
    assert [request.tenant for request in generator.requests] == ["default", "acme.eu-1"]
    refused = client.post(CHAT, json=HELLO, headers={"X-Tandem-Tenant": "a/b"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tenant"
