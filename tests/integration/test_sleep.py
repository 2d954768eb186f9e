"""Pools that sleep on a real cluster in one process; the test starts and ends what Serve would."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

from cluster.api import Progress, Summary, Tokens
from cluster.config.autoscaling import PoolBounds, ScalingConfig
from cluster.config.endpoints import EndpointConfig
from cluster.discovery.redis_directory import Directory
from cluster.replica.replica import Replica
from cluster.router.server import RouterServer
from engine.errors import Overloaded, TandemError
from tandem_client import Client
from tests.eventually import eventually
from tests.integration.local import HOST
from tests.integration.test_prefixes import expected

PROMPT = [number * 7 % 256 for number in range(60)]
SCALING = ScalingConfig(
    prefill=PoolBounds(0, 1), decode=PoolBounds(0, 1), idle_s=4.0, rest_s=0.1, start_s=20.0
)


class Serve:
    """Starts a replica where a pool is woken, and ends it where the directory wants none."""

    def __init__(self, config, directory):
        self.config = config
        self.directory = directory
        self.woken = []
        self.running = {}
        self.tasks = {}
        self._over = False

    def wake(self, pool):
        if pool not in self.tasks:
            self.woken.append(pool)
            self.tasks[pool] = asyncio.create_task(self._live(pool))

    async def _live(self, pool):
        name = f"{pool}-{len(self.woken)}"
        replica = await Replica.start(self.config, pool, name, HOST, self.directory)
        self.running[pool] = replica
        try:
            await eventually(lambda: self._ends(pool), within_s=600)
            await replica.drain(0 if self._over else 30)
        finally:
            del self.running[pool]
            await replica.stop()
            del self.tasks[pool]

    async def _ends(self, pool):
        return self._over or (await self.directory.desired()).get(pool) == 0

    async def end(self):
        self._over = True
        await asyncio.gather(*self.tasks.values())


@asynccontextmanager
async def sleeping(config):
    """A router alone, and what Serve would do for it."""
    directory = Directory.of(config)
    serve = Serve(config, directory)
    router = await RouterServer.start(config, "router-0", directory, wake=serve.wake)
    try:
        async with Client(router.grpc_address) as client:
            yield serve, router, client
    finally:
        await router.stop()
        await serve.end()
        await directory.close()


def sleepy(config):
    """`chat` may wait half a minute for its first token, `hasty` nearly not at all."""
    return replace(
        config,
        scaling=SCALING,
        # Other tests' counts in this Redis are not ours.
        directory=replace(config.directory, namespace="sleep"),
        endpoints={
            "chat": EndpointConfig(ttft_budget_ms=100_000, itl_budget_ms=60_000),
            "hasty": EndpointConfig(ttft_budget_ms=200),
            "batch": EndpointConfig(lane="batch"),
        },
    )


async def ask(client, **options):
    """The answer's tokens, the progress before it, and its first choice's summary."""
    got, told, summary = [], [], None
    options = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, **options}
    async for event in client.generate(PROMPT, progress=True, timeout_s=60, **options):
        match event:
            case Tokens():
                got += [token.token for token in event.tokens]
            case Progress():
                told.append(event)
            case Summary():
                summary = event.choices[0]
    return got, told, summary


async def test_a_request_wakes_the_pools_and_idle_ones_sleep_again(config, model):
    async with sleeping(sleepy(config)) as (serve, router, client):
        # Asleep is ready: nothing is missing.
        assert router.pools.missing() == ()
        wanted = expected(model, PROMPT, 12)
        for number, endpoint in enumerate(("batch", "chat")):
            got, told, summary = await ask(client, endpoint=endpoint)
            assert got == wanted
            assert told and told[0].stage == "starting"
            assert 0 < told[0].wait_s <= SCALING.start_s
            assert (sorted(serve.woken[2 * number :])) == ["decode", "prefill"]
            assert summary.decode_replica.startswith("decode")
            await eventually(lambda: not serve.tasks)
            # Measured: the second is told less than the guess.
            assert router.pools.starts.usual_s("decode") < SCALING.start_s


async def test_a_request_that_cannot_wait_for_a_start_is_told_when_to_retry(config, model):
    async with sleeping(sleepy(config)) as (serve, _, client):
        try:
            await ask(client, endpoint="hasty")
        except Overloaded as refused:
            assert 0 < refused.retry_after_s <= SCALING.start_s
            assert "started" in refused.message
        else:
            raise AssertionError("it was not refused")
        await eventually(lambda: len(serve.running) == 2)  # though nobody waits

        async def answered():
            try:
                return (await ask(client, endpoint="chat"))[0]
            except TandemError:
                return None

        got = await eventually(answered)
        assert got == expected(model, PROMPT, 12)


async def test_a_stream_keeps_its_pools_awake(config, model):
    async with sleeping(sleepy(config)) as (serve, _, client):
        got, _, _ = await ask(client, endpoint="chat", max_tokens=1000)
        assert got == expected(model, PROMPT, 1000)
        assert serve.woken.count("decode") == 1
