"""The rest of a stream over HTTP: exactly the chunks that the client does not have."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count

import httpx
import pytest
from starlette.testclient import TestClient

from cluster.api import Heartbeat, Progress, Resumability, Started, Tokens
from cluster.gateway import openai_response
from cluster.gateway.browser_access import BrowserRules
from cluster.gateway.http_app import create_app
from cluster.tenants.api_keys import FileKeys
from engine.errors import ReplicaLost
from tests.cluster.gateway.answers.event_source import EventSource
from tests.cluster.gateway.http_listener import (
    AS_JSON,
    CHAT,
    HELLO,
    TEXT,
    asking,
    error_of,
    front_end,
    metrics,
)
from tests.cluster.scripted_generator import ScriptedGenerator
from tests.eventually import eventually

RESUMABLE = {"stream": True, "resumable": True, "request_id": "r1"}
USAGE = {"stream_options": {"include_usage": True}}
FORMS = {
    "chat": (CHAT, HELLO),
    "chat with three choices, logprobs and usage": (
        CHAT,
        HELLO | USAGE | {"n": 3, "logprobs": True, "top_logprobs": 1, "max_tokens": 2},
    ),
    "completion": (TEXT, {"prompt": "a"}),
    "completion with two choices, logprobs and usage": (
        TEXT,
        USAGE | {"prompt": "a", "n": 2, "logprobs": 2},
    ),
    "completion with token ids": (TEXT, {"prompt": "a", "return_token_ids": True}),
}


class PlainGenerator(ScriptedGenerator):
    """Holds text back in every second event, has two tokens in each, and sends comments between."""

    async def _events(self, request):
        async for event in super()._events(request):
            if not isinstance(event, Tokens):
                yield event
                continue
            text = "" if event.index % 2 and not event.finish_reason else event.text
            ids, sampled = event.ids * 2, event.sampled * 2
            yield replace(event, index=2 * event.index, ids=ids, text=text, sampled=sampled)

    async def generate(self, request):
        async for event in super().generate(request):
            yield event
            if isinstance(event, Started | Tokens):
                yield Heartbeat()
                yield Progress(0, "decode", 1, 4)
                yield Resumability(suspended=True)


@pytest.fixture(autouse=True)
def numbered_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = count()
    monkeypatch.setattr(openai_response, "new_stream_id", lambda: f"stream-{next(numbers)}")


@pytest.fixture
def generator() -> ScriptedGenerator:
    return PlainGenerator()


@pytest.fixture
async def client(generator) -> AsyncIterator[httpx.AsyncClient]:
    async with asking(generator) as opened:
        yield opened


@pytest.mark.parametrize("form", FORMS)
async def test_the_rest_behind_a_cut_at_any_byte(client, form):
    path, body = FORMS[form]
    reply = await client.post(path, json=body | RESUMABLE)
    whole = EventSource().read(reply.content)
    assert whole.data[-1] == "[DONE]"
    stream_id = reply.headers["x-stream-id"]
    assert whole.last_id.startswith(f"{stream_id}:")
    cuts = {}
    for place in range(len(reply.content) + 1):
        source = EventSource().read(reply.content[:place])
        if source.last_id is not None:
            cuts[len(source.data), source.last_id] = source
    assert len(cuts) >= len(whole.data)
    for source in cuts.values():
        headers = {"last-event-id": source.last_id}
        rest = await client.get("/v1/streams", headers=headers)
        assert rest.headers["content-type"].startswith("text/event-stream")
        assert rest.headers["x-request-id"] == "r1"
        source.read(rest.content)
        if source.data[-2:] == ["[DONE]"] * 2:  # it had all
            source.data.pop()
        assert source.data == whole.data
        assert source.last_id == whole.last_id
    from_the_start = await client.get(f"/v1/streams/{stream_id}")
    assert EventSource().read(from_the_start.content).data == whole.data


async def test_an_unbroken_answer_is_that_of_other_requests(client):
    body = HELLO | USAGE | {"n": 2, "logprobs": True, "stream": True, "request_id": "r1"}
    plain = EventSource().read((await client.post(CHAT, json=body)).content)
    found = EventSource().read((await client.post(CHAT, json=body | RESUMABLE)).content)

    def merged(source):
        texts, last = {}, json.loads(source.data[-2])
        for chunk in map(json.loads, source.data[:-1]):
            for choice in chunk["choices"]:
                had = texts.setdefault(choice["index"], ["", [], [], []])
                had[0] += choice["delta"].get("content", "")
                had[1] += (choice["logprobs"] or {}).get("content", [])
                had[2] += [choice["finish_reason"]] if choice["finish_reason"] else []
                had[3] += [choice["delta"]["role"]] if "role" in choice["delta"] else []
        return texts, last["usage"]

    assert merged(plain) == merged(found)
    assert merged(found)[0][1][3] == ["assistant"]


class QueuedGenerator(ScriptedGenerator):
    """Tells of a queue before it begins."""

    async def generate(self, request):
        yield Progress(0, "queued", 0, 1, 2)
        async for event in super().generate(request):
            yield event


async def test_a_stream_that_is_queued_at_first_has_its_id_in_the_headers():
    async with asking(QueuedGenerator()) as client:
        reply = await client.post(TEXT, json={"prompt": "a"} | RESUMABLE)
    assert reply.content.startswith(b": progress")
    last_id = EventSource().read(reply.content).last_id
    assert last_id is not None
    assert last_id.startswith(f"{reply.headers['x-stream-id']}:")


async def test_a_stream_goes_on_where_its_connection_broke(generator, client):
    generator.endless, generator.pause_s = True, 0.005
    async with front_end(ScriptedGenerator(journal=generator.journal)) as port:
        async with client.stream("POST", TEXT, json={"prompt": "a"} | RESUMABLE) as reply:
            stream_id = reply.headers["x-stream-id"]
            async for line in reply.aiter_lines():
                if line.startswith("data"):
                    break
        await eventually(lambda: not generator.journal.followers)
        other = f"http://127.0.0.1:{port}/v1/streams/{stream_id}"
        texts = []
        async with client.stream("GET", f"{other}?have=2") as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data"):
                    texts.append(json.loads(line[6:])["choices"][0]["text"])
                if len(texts) == 4:
                    break
        assert texts == [" three", " five", " seven", "one"]
        ended = await client.delete(other)
        assert ended.json() == {"id": stream_id, "object": "stream", "cancelled": True}
        assert error_of(await client.delete(other), 404)["param"] == "stream_id"
    await eventually(lambda: generator.closed == ["r1"])


@pytest.mark.parametrize(
    ("path", "headers", "status", "param"),
    [
        ("/v1/streams", {}, 400, "Last-Event-ID"),
        ("/v1/streams", {"last-event-id": "a"}, 400, "Last-Event-ID"),
        ("/v1/streams", {"last-event-id": "a:"}, 400, "Last-Event-ID"),
        ("/v1/streams", {"last-event-id": "a:1.x"}, 400, "Last-Event-ID"),
        ("/v1/streams", {"last-event-id": f"a:{'1.' * 200}1"}, 400, "Last-Event-ID"),
        ("/v1/streams", {"last-event-id": "a:" + "1" * 5000}, 400, "Last-Event-ID"),
        ("/v1/streams", {"last-event-id": "nobodys:0"}, 404, "stream_id"),
        ("/v1/streams/nobodys", {}, 404, "stream_id"),
        ("/v1/streams/a%20b", {}, 400, "stream_id"),
        ("/v1/streams/a?have=1..2", {}, 400, "have"),
        ("/v1/streams/a?have=-1", {}, 400, "have"),
        ("/v1/streams/a?have=", {}, 400, "have"),
        ("/v1/streams/a?have=1", {"last-event-id": "a:1"}, 400, "have"),
        ("/v1/streams/b", {"last-event-id": "a:1"}, 400, "Last-Event-ID"),
        ("/v1/streams/stream-0?have=1", {}, 400, "have"),
        ("/v1/streams/stream-0?have=99", {}, 400, "have"),
        ("/v1/streams/stream-0?have=0.0", {}, 400, "have"),
    ],
)
async def test_what_cannot_be_resumed(client, path, headers, status, param):
    await client.post(TEXT, json={"prompt": "a"} | RESUMABLE)
    assert error_of(await client.get(path, headers=headers), status)["param"] == param


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, HELLO | {"resumable": True}),
        (TEXT, {"prompt": "a", "resumable": True}),
        (TEXT, {"prompt": ["a", "b"], "resumable": True, "stream": True}),
        (TEXT, {"prompt": "a", "resumable": 1, "stream": True}),
    ],
)
async def test_what_cannot_be_resumable(client, path, body):
    assert error_of(await client.post(path, json=body), 400)["param"] == "resumable"


async def test_a_stream_that_another_front_end_began(generator, client):
    await client.post(TEXT, json={"prompt": "a"} | RESUMABLE)
    stream = generator.journal.streams["stream-0"]
    note = json.loads(stream.note)
    stream.note = ""
    error = error_of(await client.get("/v1/streams/stream-0"), 400)
    assert "gRPC" in error["message"]
    for broken in ("{", "[]", "{}", *(json.dumps(note | odd) for odd in ODD_NOTES)):
        stream.note = broken
        error_of(await client.get("/v1/streams/stream-0"), 500)


ODD_NOTES = (
    {"form": "other"},
    {"form": 1},
    {"n": 0},
    {"n": 10_000},
    {"n": True},
    {"request_id": "a\nb"},
    {"created": -1},
    {"logprobs": 1},
    {"more": 1},
)


async def test_an_error_ends_the_rest_as_it_ended_the_stream(generator, client):
    generator.error, generator.after = ReplicaLost("gone"), 3
    reply = await client.post(TEXT, json={"prompt": "a"} | RESUMABLE)
    whole = EventSource().read(reply.content)
    assert json.loads(whole.data[-1])["error"]["code"] == "replica_lost"
    rest = await client.get("/v1/streams/stream-0?have=2")
    assert EventSource().read(rest.content).data == whole.data[1:]


async def test_a_stream_belongs_to_its_tenant(generator, tmp_path):
    file = tmp_path / "keys.yaml"
    tenants = {name: [hashlib.sha256(name.encode()).hexdigest()] for name in ("acme", "other")}
    file.write_text(json.dumps({"tenants": tenants}))
    generator.endless, generator.pause_s = True, 0.005
    async with asking(generator, keys=FileKeys(file)) as client:
        acme, other = ({"authorization": f"Bearer {name}"} for name in ("acme", "other"))
        body = {"prompt": "a"} | RESUMABLE
        async with client.stream("POST", TEXT, json=body, headers=acme) as reply:
            path = f"/v1/streams/{reply.headers['x-stream-id']}"
        for method in ("GET", "DELETE"):
            assert (await client.request(method, path)).status_code == 401
            assert (await client.request(method, path, headers=other)).status_code == 404
        assert (await client.delete(path, headers=acme)).status_code == 200


async def test_a_client_that_leaves_detaches(generator, client):
    generator.endless, generator.pause_s = True, 0.005
    for method, path, body in (
        ("POST", TEXT, {"prompt": "a"} | RESUMABLE),
        ("GET", "/v1/streams/stream-0", None),
    ):
        async with client.stream(method, path, json=body) as reply:
            await anext(reply.aiter_bytes())
            assert generator.journal.followers == 1
        await eventually(lambda: not generator.journal.followers)
        assert not generator.closed
    assert await generator.cancel_stream("stream-0", "default")


async def test_a_slow_journal_is_not_waited_for(generator, client, monkeypatch):
    monkeypatch.setattr("cluster.gateway.answers.resumed.BEGIN_S", 0.05)

    async def never(request):
        await asyncio.Event().wait()
        yield

    generator.resume = never
    error_of(await client.get("/v1/streams/stream-0"), 503)


def test_browsers_may_resume_from_pages_that_may_call():
    page = "https://page.example"
    rules = BrowserRules.of((), [page], "router.internal")
    app = create_app(PlainGenerator(), metrics, rules=rules)
    client = TestClient(app, "http://localhost:8000", headers=AS_JSON)
    client.post(TEXT, json={"prompt": "a"} | RESUMABLE, headers={"origin": page})
    last = {"last-event-id": "stream-0:2"}
    reply = client.get("/v1/streams", headers=last | {"origin": page})
    assert reply.headers["access-control-allow-origin"] == page
    assert "x-stream-id" in reply.headers["access-control-expose-headers"]
    refused = client.get("/v1/streams", headers=last | {"origin": "https://other.example"})
    assert refused.status_code == 403
    asks = {"origin": page, "access-control-request-method": "DELETE"}
    assert (
        "DELETE"
        in client.options("/v1/streams/a", headers=asks).headers["access-control-allow-methods"]
    )
    assert client.get("/v1/streams", headers=last | {"host": "other.example"}).status_code == 421
