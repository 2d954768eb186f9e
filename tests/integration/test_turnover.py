"""One version gives way to another: the old one ends what it has, the new one waits for itself."""

from __future__ import annotations

import asyncio
import functools
from contextlib import AsyncExitStack
from dataclasses import replace

import httpx
import pytest

from cluster.discovery.redis_directory import Directory
from cluster.gateway import uvicorn_server
from cluster.replica.replica import Replica
from cluster.router.server import RouterServer
from tandem_client import Client
from tests import tiny
from tests.eventually import eventually
from tests.integration.local import HOST, cluster, in_use
from tests.integration.test_drain import PROMPTS, read
from tests.integration.test_prefixes import ask, expected

LONG = 200


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def other_model(other_folder):
    return tiny.make(other_folder, initializer_range=0.27)


@pytest.fixture
def config(config):
    """One at a time in the batch, so that some wait when the end comes."""
    return replace(
        config,
        kv=replace(config.kv, prefix_cache=False),
        decode=replace(config.decode, max_batch=1),
        router=replace(config.router, kv_overcommit=100.0),
    )


@pytest.fixture
def other(config, other_model, other_folder):
    return replace(config, model=replace(config.model, path=str(other_folder)))


async def drained(*leaving):
    await asyncio.gather(*(one.drain(60) for one in leaving))


async def test_a_version_that_leaves_all_at_once_ends_what_came_before(
    config, other, model, other_model
):
    """As Serve and Kubernetes end it: routers and replicas at the same moment."""
    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(cluster(config, "old-"))
        new = await stack.enter_async_context(cluster(other, "new-"))
        got = [[] for _ in range(8)]
        options = {"max_tokens": LONG, "temperature": 0, "ignore_eos": True}
        streams = [
            asyncio.create_task(read(old.client.generate(PROMPTS[n % 4], **options), got[n]))
            for n in range(8)
        ]
        await eventually(lambda: any(len(one) > 2 for one in got))
        assert any(len(one) < LONG for one in got)
        leaving = asyncio.create_task(drained(old.router, *old.replicas))
        tokens, summary = await ask(new, PROMPTS[0])
        assert summary.decode_replica == "new-decode-0"
        await asyncio.gather(*streams)
        await asyncio.wait_for(leaving, 30)
        # Before the reference computes: nothing beats meanwhile.
        left = {record.id for record in await new.directory.members()}
        assert left == {"new-prefill-0", "new-decode-0", "new-router-0"}
        assert tokens == expected(other_model, PROMPTS[0])
        assert got == [expected(model, PROMPTS[n % 4], LONG) for n in range(8)]
        assert not any(in_use(replica) for replica in old.replicas)


async def test_a_stream_over_http_outlives_its_router_s_leaving(config, monkeypatch):
    """And a request that comes after finds the port closed."""
    # uvicorn cuts off streams that outlive its grace; this one is short, the drain's is not.
    impatient = functools.partial(uvicorn_server.start, grace_s=0)
    monkeypatch.setattr(uvicorn_server, "start", impatient)
    async with cluster(config) as local, httpx.AsyncClient(timeout=60) as client:
        url = f"http://{local.router.http_address}/v1/completions"
        body = {"model": "tiny", "prompt": PROMPTS[0], "ignore_eos": True, "stream": True}
        async with client.stream("POST", url, json=body | {"max_tokens": 1500}) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            leaving = asyncio.create_task(local.router.drain(60))
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        await asyncio.wait_for(leaving, 30)
        with pytest.raises(httpx.ConnectError):
            await client.post(url, json=body)


async def test_a_new_version_is_ready_when_all_of_it_is(config, other, other_model):
    directory = Directory.of(config)
    parts = []

    async def start(role):
        replica = await Replica.start(other, role, f"new-{role}", HOST, directory)
        parts.append(replica)
        return asyncio.create_task(replica.wait_for_version(60))

    async with cluster(config, "old-"):
        try:
            router = asyncio.create_task(RouterServer.start(other, "new-router", directory))
            prefill = await start("prefill")
            ended, _ = await asyncio.wait({prefill, router}, timeout=0.5)
            assert not ended
            decode = await start("decode")
            parts.append(await asyncio.wait_for(router, 20))
            await asyncio.wait_for(asyncio.gather(prefill, decode), 20)
            async with Client(parts[-1].grpc_address) as client:
                answer = await client.complete(
                    [1, 2, 3], max_tokens=4, temperature=0, ignore_eos=True
                )
            tokens = [token.token for token in answer.choices[0].tokens]
            assert tokens == expected(other_model, [1, 2, 3], 4)
        finally:
            for part in reversed(parts):
                await part.stop()
            await directory.close()


async def test_a_first_version_does_not_wait(config):
    directory = Directory.of(config)
    replica = await Replica.start(config, "prefill", "alone", HOST, directory)
    try:
        await asyncio.wait_for(replica.wait_for_version(60), 30)
    finally:
        await replica.stop()
        await directory.close()
