"""Resumable streams over HTTP and WebSocket on two real routers: every piece exactly once."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import replace

import httpx
import pytest
from websockets.asyncio.client import connect

from cluster.api import Started, Summary, Tokens
from tandem_client import Client
from tests.cluster.gateway.answers.event_source import EventSource
from tests.integration.test_resumable import two_routers
from tests.integration.test_resume import PROMPTS

TEXT = "/v1/completions"
BODY = {
    "prompt": PROMPTS[1],
    "max_tokens": 60,
    "temperature": 0,
    "ignore_eos": True,
    "logprobs": 1,
    "n": 2,
    "return_token_ids": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}


@pytest.fixture
def config(config):
    return replace(config, decode=replace(config.decode, replicas=2))


def gathered(data):
    """What the chunks say of each choice, and the usage."""
    *chunks, usage, done = data
    assert done == "[DONE]"
    found = {}
    for chunk in map(json.loads, chunks):
        (choice,) = chunk["choices"]
        had = found.setdefault(choice["index"], {"text": "", "ids": [], "offsets": [], "ends": []})
        had["text"] += choice["text"]
        had["ids"] += choice["token_ids"]
        had["offsets"] += (choice["logprobs"] or {"text_offset": []})["text_offset"]
        had["ends"] += [choice["finish_reason"]] if choice["finish_reason"] else []
    return found, json.loads(usage)["usage"]["completion_tokens"]


async def bytes_of(client, request, pieces):
    """The bytes of a response, of which the client reads so many events, or all.

    A busy machine brings several at once; what is behind them is lost with the connection.
    """
    found, end = b"", b"\n\n"
    response = await client.send(request, stream=True)
    try:
        assert response.status_code == 200, await response.aread()
        async for piece in response.aiter_raw():
            found += piece
            if found.count(end) >= pieces:
                return end.join(found.split(end)[:pieces]) + end
    finally:
        await response.aclose()
    return found


@pytest.mark.parametrize("pieces", [3, 8])
async def test_a_client_that_comes_back_to_both_routers_by_turns(config, pieces):
    async with (
        two_routers(config) as (local, other, _),
        httpx.AsyncClient(timeout=30) as client,
    ):
        routers = [f"http://{one.http_address}" for one in (local.router, other)]
        plain = EventSource().read((await client.post(routers[0] + TEXT, json=BODY)).content)
        source, turns = EventSource(), 0
        request = client.build_request("POST", routers[0] + TEXT, json=BODY | {"resumable": True})
        while source.data[-1:] != ["[DONE]"]:
            source.read(await bytes_of(client, request, pieces))
            turns += 1
            headers = {} if source.last_id is None else {"last-event-id": source.last_id}
            path = routers[turns % 2] + "/v1/streams"
            request = client.build_request("GET", path, headers=headers)
        assert gathered(source.data) == gathered(plain.data)
        assert turns > 1
        await local.idle()


async def test_a_stream_of_http_goes_on_over_a_websocket(config):
    async with two_routers(config) as (local, other, _), httpx.AsyncClient(timeout=30) as client:
        body = BODY | {"resumable": True, "n": 1}
        url = f"http://{local.router.http_address}{TEXT}"
        request = client.build_request("POST", url, json=body)
        source = EventSource().read(await bytes_of(client, request, 6))
        stream_id, _, have = source.last_id.partition(":")
        async with connect(f"ws://{other.http_address}/v1/stream") as socket:
            resume = {"type": "resume", "id": "a", "stream_id": stream_id, "have": [int(have)]}
            await socket.send(json.dumps(resume))
            ids = []
            while (message := json.loads(await socket.recv()))["type"] != "end":
                if message["type"] == "tokens":
                    assert message["index"] == int(have) + len(ids)
                    ids += message["ids"]
        assert int(have) + len(ids) == 60
        plain = await client.post(f"http://{local.router.http_address}{TEXT}", json=BODY)
        found, _ = gathered(EventSource().read(plain.content).data)
        assert found[0]["ids"][int(have) :] == ids


@pytest.mark.parametrize("prompt", [PROMPTS[1], [{"role": "user", "content": "hello"}]])
async def test_a_stream_of_grpc_goes_on_over_http(config, prompt):
    options = {"max_tokens": 60, "temperature": 0.0, "ignore_eos": True, "logprobs": 1, "n": 2}
    async with two_routers(config) as (local, other, _), httpx.AsyncClient(timeout=30) as client:
        started, have, texts = None, [0, 0], ["", ""]
        async with aclosing(local.client.generate(prompt, resumable=True, **options)) as events:
            async for event in events:
                if isinstance(event, Started):
                    started = event
                elif isinstance(event, Tokens):
                    have[event.choice] += len(event.ids)
                    texts[event.choice] += event.text
                if min(have) > 5:
                    break
        assert started is not None
        counts = ".".join(map(str, have))
        url = f"http://{other.http_address}/v1/streams/{started.stream_id}?have={counts}"
        *chunks, usage, done = EventSource().read((await client.get(url)).content).data
        assert done == "[DONE]" and json.loads(usage)["usage"]["completion_tokens"] == 120
        ids = [[], []]
        for chunk in map(json.loads, chunks):
            (choice,) = chunk["choices"]
            assert chunk["id"].endswith(f"-{started.request_id}")
            text = choice.get("text") or choice.get("delta", {}).get("content")
            texts[choice["index"]] += text or ""
            ids[choice["index"]] += choice["token_ids"]
            assert choice["logprobs"] or not choice["token_ids"]
        whole = await local.client.complete(prompt, seed=started.seed, **options)
        for choice, one in enumerate(whole.choices):
            assert texts[choice] == one.text
            assert ids[choice] == [token.token for token in one.tokens][have[choice] :]


async def test_a_stream_of_http_goes_on_over_grpc(config):
    async with two_routers(config) as (local, other, _), httpx.AsyncClient(timeout=30) as client:
        url = f"http://{local.router.http_address}{TEXT}"
        request = client.build_request("POST", url, json=BODY | {"resumable": True, "n": 1})
        source = EventSource().read(await bytes_of(client, request, 6))
        stream_id, _, have = source.last_id.partition(":")
        plain = (await client.post(url, json=BODY | {"n": 1})).content
        async with Client(other.grpc_address) as back:
            rest = [event async for event in back.resume(stream_id, [int(have)])]
        tokens = [event for event in rest if isinstance(event, Tokens)]
        found, _ = gathered(EventSource().read(plain).data)
        assert [one for event in tokens for one in event.ids] == found[0]["ids"][int(have) :]
        assert found[0]["text"].endswith("".join(event.text for event in tokens))
        assert isinstance(rest[-1], Summary)
