"""Resumable streams over the WebSocket: their rest on another socket or router, and their end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import ClientConnection, connect

from engine.errors import Unavailable
from tests.cluster.gateway.answers.event_source import EventSource
from tests.cluster.gateway.http_listener import asking, front_end
from tests.cluster.gateway.test_websocket import HELLO, PATH, TEXT, failure, say, until_ends
from tests.cluster.scripted_generator import ScriptedGenerator
from tests.eventually import eventually


@asynccontextmanager
async def router(generator) -> AsyncIterator[ClientConnection]:
    """A socket to a router with the journal of `generator`."""
    beside = ScriptedGenerator(journal=generator.journal)
    async with front_end(beside) as port, connect(f"ws://127.0.0.1:{port}{PATH}") as found:
        yield found


@pytest.fixture
async def socket(generator) -> AsyncIterator[ClientConnection]:
    async with front_end(generator) as port, connect(f"ws://127.0.0.1:{port}{PATH}") as found:
        yield found


@pytest.fixture
async def other(generator) -> AsyncIterator[ClientConnection]:
    async with router(generator) as found:
        yield found


async def message_of(socket):
    return json.loads(await socket.recv())


async def all_of(socket, document):
    await say(socket, document)
    (messages,) = (await until_ends(socket)).values()
    return messages


@pytest.mark.parametrize(
    "wanted", [HELLO | {"n": 2}, TEXT | {"n": 2, "logprobs": 1}, HELLO | {"logprobs": True}]
)
async def test_the_rest_comes_on_another_socket_exactly_once(socket, other, wanted):
    whole = await all_of(socket, wanted | {"id": "a", "resumable": True})
    stream_id = whole[0]["stream_id"]
    tokens = whole[1:-1]
    for cut in range(len(tokens) + 1):
        have = [0] * wanted.get("n", 1)
        for message in tokens[:cut]:
            have[message["choice"]] += len(message["ids"])
        resume = {"type": "resume", "id": "b", "stream_id": stream_id, "have": have}
        assert await all_of(other, resume) == [whole[0], *tokens[cut:], whole[-1]]


async def test_a_stream_is_begun_over_http_and_resumed_here_and_back(generator):
    body = {"prompt": "a", "stream": True, "resumable": True, "request_id": "r1"}
    async with asking(generator) as client:
        reply = await client.post("/v1/completions", json=body)
        whole = EventSource().read(reply.content)
        async with router(generator) as socket:
            stream_id = reply.headers["x-stream-id"]
            resume = {"type": "resume", "id": "b", "stream_id": stream_id, "have": [2]}
            messages = await all_of(socket, resume)
            assert [one["text"] for one in messages[1:-1]] == [" three", " four"]
            await all_of(socket, TEXT | {"id": "c", "resumable": True, "request_id": "r1"})
        rest = EventSource().read((await client.get("/v1/streams/stream-0?have=2")).content)
        chunks = [json.loads(one)["choices"] for one in whole.data[2:-1]]
        assert [json.loads(one)["choices"] for one in rest.data[:-1]] == chunks


async def test_the_end_of_the_socket_detaches(generator, other):
    generator.endless, generator.pause_s = True, 0.005
    async with front_end(generator) as port:
        async with connect(f"ws://127.0.0.1:{port}{PATH}") as socket:
            await say(socket, HELLO | {"id": "a", "resumable": True, "request_id": "mine"})
            stream_id = (await message_of(socket))["stream_id"]
            await message_of(socket)
        await eventually(lambda: not generator.journal.followers)
        await say(other, {"type": "resume", "id": "b", "stream_id": stream_id, "have": [1]})
        assert (await message_of(other))["type"] == "started"
        for index in range(1, 20):
            assert (await message_of(other))["index"] == index
        assert not generator.closed
        await say(other, {"type": "cancel", "id": "b"})
        assert (await until_ends(other))["b"][-1]["error"]["code"] == "cancelled"
        await eventually(lambda: generator.closed == ["mine"])


async def test_cancel_by_the_id_of_the_socket_ends_a_resumable_one(generator, socket):
    generator.endless, generator.pause_s = True, 0.005
    await say(socket, HELLO | {"id": "a", "resumable": True})
    await message_of(socket)
    await say(socket, {"type": "cancel", "id": "a"})
    assert (await until_ends(socket))["a"][-1]["error"]["code"] == "cancelled"
    await eventually(lambda: generator.closed)


async def test_a_cancel_that_another_router_does_not_answer_ends_it_here(
    generator, socket, monkeypatch
):
    async def cancel(request_id, tenant):
        raise Unavailable("a router did not answer")

    monkeypatch.setattr(generator, "cancel", cancel)
    generator.endless, generator.pause_s = True, 0.005
    await say(socket, HELLO | {"id": "a", "resumable": True})
    await message_of(socket)
    await say(socket, {"type": "cancel", "id": "a"})
    assert (await until_ends(socket))["a"][-1]["error"]["code"] == "cancelled"


async def test_a_resumed_one_whose_cancel_the_journal_does_not_take_ends_here_once(
    generator, socket, other, monkeypatch
):
    """An error of its id is its last message: nothing of it follows."""
    generator.endless, generator.pause_s = True, 0.005
    await say(socket, HELLO | {"id": "a", "resumable": True})
    stream_id = (await message_of(socket))["stream_id"]

    async def cancel_stream(self, stream_id, tenant):
        raise Unavailable("Redis is away")

    monkeypatch.setattr(ScriptedGenerator, "cancel_stream", cancel_stream)
    await say(other, {"type": "resume", "id": "b", "stream_id": stream_id})
    await message_of(other)
    await say(other, {"type": "cancel", "id": "b"})
    assert (await until_ends(other))["b"][-1]["error"]["message"] == "Redis is away"
    await say(other, {"type": "cancel", "id": "b"})
    assert (await until_ends(other))["b"][-1]["error"]["code"] == "not_found"


async def test_cancel_by_the_id_of_the_stream(generator, socket, other):
    generator.endless, generator.pause_s = True, 0.005
    await say(socket, HELLO | {"id": "a", "resumable": True})
    stream_id = (await message_of(socket))["stream_id"]
    end = {"type": "cancel", "id": "x", "stream_id": stream_id}
    await say(other, end)
    assert await message_of(other) == {"id": "x", "type": "cancelled", "stream_id": stream_id}
    assert (await until_ends(socket))["a"][-1]["error"]["code"] == "cancelled"
    _, status, error = await failure(other, end)
    assert (status, error["param"]) == (404, "stream_id")


async def test_one_that_is_not_resumable_has_no_stream_id(socket):
    assert "stream_id" not in (await all_of(socket, HELLO | {"id": "a"}))[0]


@pytest.mark.parametrize(
    ("document", "status", "param"),
    [
        ({"type": "resume", "id": "a"}, 400, "stream_id"),
        ({"type": "resume", "id": "a", "stream_id": 1}, 400, "stream_id"),
        ({"type": "resume", "id": "a", "stream_id": "a b"}, 400, "stream_id"),
        ({"type": "resume", "id": "a", "stream_id": "nobodys"}, 404, "stream_id"),
        ({"type": "resume", "id": "a", "stream_id": "stream-0", "have": 1}, 400, "have"),
        ({"type": "resume", "id": "a", "stream_id": "stream-0", "have": [True]}, 400, "have"),
        ({"type": "resume", "id": "a", "stream_id": "stream-0", "have": [-1]}, 400, "have"),
        ({"type": "resume", "id": "a", "stream_id": "stream-0", "have": [99]}, 400, "have"),
        ({"type": "resume", "id": "a", "stream_id": "stream-0", "have": [0, 0]}, 400, "have"),
        ({"type": "resume", "id": "a", "stream_id": "stream-0", "have": [0] * 129}, 400, "have"),
        ({"type": "resume", "id": "a", "stream_id": "stream-0", "n": 1}, 400, "n"),
        ({"type": "cancel", "id": "a", "stream_id": "a b"}, 400, "stream_id"),
        ({"type": "cancel", "id": "a", "stream_id": "nobodys"}, 404, "stream_id"),
        (TEXT | {"id": "a", "prompt": ["a", "b"], "resumable": True}, 400, "resumable"),
    ],
)
async def test_what_cannot_be_resumed(socket, document, status, param):
    await all_of(socket, HELLO | {"id": "z", "resumable": True})
    _, found, error = await failure(socket, document)
    assert (found, error["param"]) == (status, param)
