"""A stalled engine is unhealthy and gets no work. A router that ends is unhealthy, too."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import httpx
import pytest

from cluster.router.server import RouterServer
from engine.errors import Internal, Unavailable
from tandem_client import Client
from tests.eventually import eventually
from tests.integration.local import cluster, slow_steps
from tests.integration.test_drain import begin
from tests.integration.test_prefixes import ask, expected

PROMPT = [1, 2, 3]
# Longer than a busy machine keeps a step waiting.
STILL_S = 5.0


@pytest.fixture
def config(config):
    """Two decode replicas, whose engines may stand still for a moment only."""
    return replace(
        config,
        model=replace(config.model, step_timeout_s=STILL_S),
        decode=replace(config.decode, replicas=2),
    )


class Stall:
    """Holds every step of an engine until `end`."""

    def __init__(self, replica, monkeypatch):
        engine = replica.parts.model.engine
        self._free = threading.Event()
        self.begun = threading.Event()
        forward = engine.forward

        def held(spans):
            self.begun.set()
            assert self._free.wait(60)
            return forward(spans)

        monkeypatch.setattr(engine, "forward", held)

    def end(self):
        self._free.set()


async def healthz(local):
    async with httpx.AsyncClient(timeout=30) as client:
        answer = await client.get(f"http://{local.router.http_address}/healthz")
    return answer.status_code, answer.json()


async def test_a_stalled_engine_is_unhealthy_and_gets_no_work(config, model, monkeypatch):
    async with cluster(config) as local:
        assert await healthz(local) == (200, {"status": "ok"})
        first, second = local.decode
        stall = Stall(first, monkeypatch)
        try:
            # Both replicas get streams; those on the first stand still.
            streams = await _begun(local, stall)
            await eventually(lambda: local.router.pools.unhealthy() == (first.id,))
            with pytest.raises(Internal, match=f"completed no step for {STILL_S:g} s"):
                first.check_health()
            second.check_health()
            assert await healthz(local) == (200, {"status": "ok", "unhealthy": [first.id]})
            tokens, summary = await ask(local, PROMPT)
            assert summary.decode_replica == second.id
            assert tokens == expected(model, PROMPT)
        finally:
            stall.end()
        answers = [tokens for tokens, _ in await asyncio.gather(*streams)]
        assert answers == [expected(model, PROMPT, 40)] * 4
        await eventually(lambda: local.router.pools.unhealthy() == ())
        first.check_health()


async def test_a_pool_with_stalled_engines_alone_is_unavailable(config, monkeypatch):
    config = replace(config, decode=replace(config.decode, replicas=1))
    async with cluster(config) as local:
        (decode,) = local.decode
        stall = Stall(decode, monkeypatch)
        try:
            request = asyncio.create_task(ask(local, PROMPT))
            await eventually(lambda: local.router.router.missing() == ("decode",))
            body = {"status": "unavailable", "missing": ["decode"], "unhealthy": [decode.id]}
            assert await healthz(local) == (503, body)
        finally:
            stall.end()
        await request
        await eventually(lambda: local.router.router.missing() == ())


async def test_the_last_router_refuses_new_requests_until_its_streams_have_ended(config, model):
    async with cluster(config) as local:
        slow_steps(local.decode, 0.005)  # its streams run while it is asked
        streams, got = await begin(local, 2)
        drained = asyncio.create_task(local.router.drain(60))
        await eventually(lambda: local.router.router.missing() == ("router",))
        with pytest.raises(Unavailable, match="is ending") as refused:
            await local.client.complete(PROMPT, max_tokens=2)
        assert 1 <= refused.value.retry_after_s <= 60
        assert (await healthz(local))[0] == 503
        await asyncio.gather(*streams)
        await asyncio.wait_for(drained, 30)
        assert [len(tokens) for tokens in got] == [600, 600]


async def test_a_router_that_is_replaced_serves_until_another_one_does(config):
    async with cluster(config) as local:
        drained = asyncio.create_task(local.router.drain(60, replaced=True))
        for _ in range(3):
            await local.client.complete(PROMPT, max_tokens=2)
        assert not drained.done()
        next_one = await RouterServer.start(config, "router-1", local.directory)
        try:
            await asyncio.wait_for(drained, 30)
            async with Client(next_one.grpc_address) as client:
                await client.complete(PROMPT, max_tokens=2)
        finally:
            await next_one.stop()


async def _begun(local, stall):
    """Streams on all replicas, of which one is stalled."""
    streams = [asyncio.create_task(ask(local, PROMPT, max_tokens=40)) for _ in range(4)]
    assert await asyncio.to_thread(stall.begun.wait, 30)
    return streams
