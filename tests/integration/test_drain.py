"""A replica that leaves: nothing new goes there, and what it has begun ends as it would have."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import httpx
import pytest
from websockets.asyncio.client import connect

from cluster.api import Tokens
from engine.errors import Unavailable
from tests.eventually import eventually
from tests.integration.local import cluster, in_use, slow_steps
from tests.integration.test_prefixes import ask, expected

LONG = 600
PROMPTS = [[number * step % 256 for number in range(50 + step)] for step in (3, 7, 11, 13)]


async def read(events, into):
    async for event in events:
        if isinstance(event, Tokens):
            into += [token.token for token in event.tokens]


@pytest.fixture
def config(config):
    """Two of each, so that one of each can leave."""
    return replace(
        config,
        kv=replace(config.kv, prefix_cache=False),
        prefill=replace(config.prefill, replicas=2, local_prefill_tokens=0),
        decode=replace(config.decode, replicas=2),
    )


def ids(records):
    return {record.id for record in records}


async def begin(local, count, tokens=LONG):
    """So many streams, each with its first few tokens."""
    got = [[] for _ in range(count)]
    options = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    streams = [
        asyncio.create_task(read(local.client.generate(prompt, **options), into))
        for prompt, into in zip(PROMPTS, got, strict=False)
    ]
    await eventually(lambda: min(map(len, got)) >= 3)
    return streams, got


async def test_streams_end_on_a_decode_replica_that_leaves_and_new_ones_go_elsewhere(config, model):
    async with cluster(config) as local:
        streams, got = await begin(local, 4)
        leaving = local.decode[1]
        assert in_use(leaving)
        drained = asyncio.create_task(leaving.drain(60))
        await eventually(lambda: leaving.id not in ids(local.router.pools.healthy("decode")))
        for _ in range(4):
            tokens, summary = await ask(local, PROMPTS[0])
            assert tokens == expected(model, PROMPTS[0])
            assert summary.decode_replica == "decode-0"
        await asyncio.gather(*streams)
        await asyncio.wait_for(drained, 20)
        assert got == [expected(model, prompt, LONG) for prompt in PROMPTS]
        assert not in_use(leaving)
        await local.idle()


async def test_a_replica_that_leaves_idle_breaks_no_link(config, caplog):
    async with cluster(config) as local:
        streams, _ = await begin(local, 4, 30)
        await asyncio.gather(*streams)
        leaving = max(local.prefill, key=lambda one: one.parts.prefill.sender.links_open)
        assert leaving.parts.prefill.sender.links_open
        await leaving.drain(60)
        assert not leaving.parts.prefill.sender.links_open
    assert not [one.getMessage() for one in caplog.records if ": broken: " in one.getMessage()]


async def test_what_comes_in_the_moment_of_leaving_is_served_too(config, model):
    """Routers read the directory a moment later."""
    async with cluster(config) as local:
        both = [local.prefill[1], local.decode[1]]
        drained = [asyncio.create_task(replica.drain(60)) for replica in both]
        used = set()
        while not all(one.done() for one in drained):
            tokens, summary = await ask(local, PROMPTS[1], max_tokens=3)
            assert tokens == expected(model, PROMPTS[1], 3)
            used |= {summary.prefill_replica, summary.decode_replica}
        await asyncio.gather(*drained)
        tokens, summary = await ask(local, PROMPTS[1], max_tokens=3)
        assert (summary.prefill_replica, summary.decode_replica) == ("prefill-0", "decode-0")
        # The links that ended were idle: those that stay had nothing to abandon. What was handed
        # over last may be confirmed behind the answer.
        assert not any(replica.load().blocks_quarantined for replica in local.replicas)
        await local.idle()
        assert used


async def test_kv_that_waits_for_a_decode_replica_is_handed_over_before_the_end(config, model):
    """The decode pool is full for a while; the prefill replica keeps what it computed."""
    config = replace(
        config,
        decode=replace(config.decode, replicas=1, max_batch=1),
        router=replace(config.router, kv_overcommit=100.0),
    )
    async with cluster(config) as local:
        streams, got = await begin(local, 4, 150)
        drained = [asyncio.create_task(replica.drain(60)) for replica in local.prefill[1:]]
        await asyncio.gather(*streams)
        await asyncio.gather(*drained)
        assert got == [expected(model, prompt, 150) for prompt in PROMPTS]


async def test_a_stream_that_outlasts_the_time_goes_on_elsewhere(config, model):
    async with cluster(config) as local:
        streams, got = await begin(local, 1)
        (leaving,) = (replica for replica in local.decode if in_use(replica))
        await leaving.drain(0.2)
        await leaving.stop()
        await asyncio.gather(*streams)
        assert got == [expected(model, PROMPTS[0], LONG)]


async def grpc_end(local):
    with pytest.raises(Unavailable) as error:
        async for _ in local.client.generate(PROMPTS[0], max_tokens=1900, ignore_eos=True):
            pass
    return error.value.message


async def http_end(local, begun=None):
    """The end of a whole answer, or of a stream, which tells `begun` when its status has come."""
    body = {"model": "tiny", "prompt": PROMPTS[0], "max_tokens": 1900, "ignore_eos": True}
    url = f"http://{local.router.http_address}/v1/completions"
    body |= {"stream": begun is not None}
    async with (
        httpx.AsyncClient(timeout=30) as client,
        client.stream("POST", url, json=body) as answer,
    ):
        if begun is not None:
            begun.set()
        await answer.aread()
    assert answer.status_code == (200 if begun else 503)
    last = answer.text.split("data: ")[-1]
    error = json.loads(last)["error"]
    assert error["code"] == "unavailable"
    return error["message"]


async def socket_end(local):
    async with connect(f"ws://{local.router.http_address}/v1/stream") as socket:
        body = {"prompt": PROMPTS[0], "max_tokens": 1900, "ignore_eos": True}
        await socket.send(json.dumps({"type": "completion", "id": "a"} | body))
        while (message := json.loads(await socket.recv()))["type"] != "error":
            pass
    return message["error"]["message"]


@pytest.mark.parametrize("drain_s", [0.0, 1.5])
async def test_a_plain_stream_that_outlasts_its_router_ends_with_a_retryable_error(config, drain_s):
    begun = asyncio.Event()
    async with cluster(config) as local:
        slow_steps(local.decode, 0.01)  # none ends by itself
        ends = [
            asyncio.create_task(one)
            for one in (
                grpc_end(local),
                http_end(local, begun),
                http_end(local),
                socket_end(local),
            )
        ]
        await eventually(lambda: local.router.router.running == 4)
        await eventually(lambda: sum(one.load().running for one in local.decode) == 4)
        # Until its first token an answer has no status, and may get that of the error.
        await asyncio.wait_for(begun.wait(), 30)
        await local.router.drain(drain_s)
        for message in await asyncio.gather(*ends):
            assert message == "the router ended; send the request again"
