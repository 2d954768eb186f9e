"""Responses in the background: every router gives the same events with the same numbers."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import openai
import pytest

from cluster.api import Tokens
from cluster.tenants.api_keys import FileKeys
from engine import errors
from tests.cluster.gateway.http_listener import asking, error_of, front_end
from tests.cluster.gateway.responses.test_openai_client import PartsGenerator, events_of, thoughts
from tests.cluster.scripted_generator import ScriptedGenerator
from tests.eventually import eventually

ASKED = {"model": "demo", "input": "x", "background": True}


@pytest.fixture
def generator() -> PartsGenerator:
    return PartsGenerator()


@pytest.fixture
async def clients(generator) -> AsyncIterator[list[openai.AsyncOpenAI]]:
    """Clients of two routers of one journal; the first one is of `generator`."""
    async with AsyncExitStack() as stack:
        opened = []
        for one in (generator, ScriptedGenerator(journal=generator.journal)):
            port = await stack.enter_async_context(front_end(one))
            url = f"http://127.0.0.1:{port}/v1"
            client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
            opened.append(await stack.enter_async_context(client))
        yield opened


async def ended(client, response_id):
    """The response, once it has ended."""
    async with asyncio.timeout(30):
        while (found := await client.responses.retrieve(response_id)).status == "in_progress":
            await asyncio.sleep(0)
    return found


async def test_both_routers_give_the_same_events_behind_any_number(generator, clients):
    generator.parts = thoughts()
    whole = await events_of(await clients[0].responses.create(**ASKED, stream=True))
    response_id = whole[0]["response"]["id"]
    assert whole[-1]["type"] == "response.completed"
    assert whole[-1]["response"]["completed_at"]
    numbers = [event["sequence_number"] for event in whole]
    assert numbers[0] == 0
    assert numbers == sorted(set(numbers))
    for client in clients:
        for after in (None, *range(numbers[-1] + 3)):
            behind = {} if after is None else {"starting_after": after}
            stream = await client.responses.retrieve(response_id, stream=True, **behind)
            found = await events_of(stream)
            have = -1 if after is None else after
            wanted = [event for event in whole if event["sequence_number"] > have]
            if wanted and have not in (-1, *numbers):
                # The client has a part of the delta.
                number = wanted[0]["sequence_number"]
                wanted[0] = wanted[0] | {"delta": wanted[0]["delta"][have - number :]}
            assert found == wanted
    for client in clients:
        assert (await client.responses.retrieve(response_id)).to_dict() == whole[-1]["response"]


async def test_a_response_goes_on_without_a_client(generator, clients):
    generator.pause_s = 0.2  # longer than its beginning takes
    begun = await clients[0].responses.create(**ASKED)
    assert begun.status == "in_progress"
    assert begun.background
    assert begun.model_extra["store"] is True
    done = await ended(clients[1], begun.id)
    assert (done.output_text, done.status) == ("one two three four", "incomplete")
    assert generator.finished
    generator.parts = ({"text": "b"},)
    async with await clients[0].responses.create(**ASKED, stream=True) as stream:
        response_id = (await anext(aiter(stream))).response.id
    assert (await ended(clients[1], response_id)).output_text == "b"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_is_cancelled_from_any_router(generator, clients, stream):
    generator.endless, generator.pause_s = True, 0.005
    first, second = clients
    if stream:
        opened = await first.responses.create(**ASKED, stream=True)
        response_id = (await anext(aiter(opened))).response.id
    else:
        response_id = (await first.responses.create(**ASKED)).id
    found = await second.responses.cancel(response_id)
    assert found.status == "cancelled"
    assert (await second.responses.cancel(response_id)).status == "cancelled"
    assert (await first.responses.retrieve(response_id)).status == "cancelled"
    await eventually(lambda: generator.closed)
    if stream:
        *_, told, last = [event async for event in opened]
        assert (told.type, told.code) == ("error", "cancelled")
        assert (last.type, last.response.status) == ("response.failed", "cancelled")


async def test_a_failure_is_the_end_on_every_router(generator, clients):
    generator.error, generator.after = errors.Unavailable("gone"), 3
    whole = await events_of(await clients[0].responses.create(**ASKED, stream=True))
    assert [event["type"] for event in whole[-2:]] == ["error", "response.failed"]
    response_id = whole[0]["response"]["id"]
    again = await clients[1].responses.retrieve(response_id, stream=True)
    assert await events_of(again) == whole
    found = await clients[1].responses.retrieve(response_id)
    assert (found.status, found.error.code) == ("failed", "server_error")
    assert found.output_text == "one two"


async def test_a_journal_that_is_away_fails_no_response(generator, clients):
    generator.pause_s = 0.01
    begun = await clients[0].responses.create(**ASKED)
    resume = generator.resume

    async def broken(request):
        async for event in resume(request):
            yield event
            if isinstance(event, Tokens):
                raise errors.Unavailable("Redis is away")

    generator.resume = broken
    stream = await clients[0].responses.retrieve(begun.id, stream=True)
    assert (await events_of(stream))[-1]["type"] == "error"
    await ended(clients[1], begun.id)
    with pytest.raises(openai.InternalServerError):
        await clients[0].responses.retrieve(begun.id)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_has_its_status_and_begins_nothing(generator, clients, stream):
    generator.error = errors.Overloaded("full", retry_after_s=1.0)
    with pytest.raises(openai.RateLimitError):
        await clients[0].responses.create(**ASKED, stream=stream)


async def test_a_response_that_cannot_be_read_is_cancelled(generator, clients):
    generator.endless, generator.pause_s = True, 0.005

    async def full(request):
        raise errors.Overloaded("too many clients")
        yield

    generator.resume = full
    with pytest.raises(openai.RateLimitError):
        await clients[0].responses.create(**ASKED)
    await eventually(lambda: generator.closed)


@pytest.mark.parametrize(
    ("path", "status", "param"),
    [
        ("/v1/responses/resp_nobodys", 404, "response_id"),
        ("/v1/responses/nobodys", 404, "response_id"),
        ("/v1/responses/resp_a%20b", 404, "response_id"),
        ("/v1/responses/resp_a?stream=1", 400, "stream"),
        ("/v1/responses/resp_a?starting_after=1", 400, "starting_after"),
        ("/v1/responses/resp_a?stream=true&starting_after=-1", 400, "starting_after"),
        ("/v1/responses/resp_a?stream=true&starting_after=x", 400, "starting_after"),
        (f"/v1/responses/resp_a?stream=true&starting_after={'1' * 5000}", 400, "starting_after"),
    ],
)
async def test_what_cannot_be_read(generator, path, status, param):
    async with asking(generator) as client:
        assert error_of(await client.get(path), status)["param"] == param
        cancel = path.partition("?")[0] + "/cancel"
        assert error_of(await client.post(cancel), 404)["param"] == "response_id"


async def test_streams_and_responses_are_told_apart(generator):
    async with asking(generator) as client:
        chat = {"messages": [{"role": "user", "content": "x"}], "stream": True, "resumable": True}
        reply = await client.post("/v1/chat/completions", json=chat)
        path = f"/v1/responses/resp_{reply.headers['x-stream-id']}"
        assert error_of(await client.get(path), 404)["param"] == "response_id"
        begun = (await client.post("/v1/responses", json=ASKED)).json()["id"]
        stream_id = begun.removeprefix("resp_")
        error = error_of(await client.get(f"/v1/streams/{stream_id}"), 400)
        assert "/v1/responses/" in error["message"]
        stream = generator.journal.streams[stream_id]
        note = json.loads(stream.note)
        for odd in ({"request_id": "a\nb"}, {"created": -1}, {"created": "1"}, {"more": 1}):
            stream.note = json.dumps(note | odd)
            error_of(await client.get(f"/v1/responses/{begun}"), 500)
        for broken in ("{", "[]"):
            stream.note = broken
            error_of(await client.get(f"/v1/responses/{begun}"), 500)


async def test_a_response_belongs_to_its_tenant(generator, tmp_path):
    file = tmp_path / "keys.yaml"
    tenants = {name: [hashlib.sha256(name.encode()).hexdigest()] for name in ("acme", "other")}
    file.write_text(json.dumps({"tenants": tenants}))
    generator.endless, generator.pause_s = True, 0.005
    async with asking(generator, keys=FileKeys(file)) as client:
        acme, other = ({"authorization": f"Bearer {name}"} for name in ("acme", "other"))
        begun = (await client.post("/v1/responses", json=ASKED, headers=acme)).json()
        path = f"/v1/responses/{begun['id']}"
        for method, more in (("GET", ""), ("GET", "?stream=true"), ("POST", "/cancel")):
            assert (await client.request(method, path + more)).status_code == 401
            assert (await client.request(method, path + more, headers=other)).status_code == 404
        ending: httpx.Response = await client.post(f"{path}/cancel", headers=acme)
        assert ending.json()["status"] == "cancelled"


async def test_a_request_without_a_beginning_is_a_fault(generator, clients):
    async def nothing(request):
        return
        yield

    generator.generate = nothing
    with pytest.raises(openai.InternalServerError):
        await clients[0].responses.create(**ASKED)
