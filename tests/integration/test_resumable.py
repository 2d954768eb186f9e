"""Resumable streams on two routers: every token exactly once, whoever breaks or dies."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import redis.asyncio

from cluster.api import (
    GenerateRequest,
    Resumability,
    ResumeRequest,
    Started,
    Summary,
    TokenPrompt,
    Tokens,
)
from cluster.api.event_streams import end
from cluster.client.admin_client import request_purge
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.router.server import RouterServer
from engine.errors import AlreadyRunning, Cancelled, InvalidRequest, NotFound
from engine.types.sampling_params import SamplingParams
from tandem_client import Client
from tests.eventually import eventually
from tests.integration.local import OPERATOR_KEY, cluster, in_use, slow_steps
from tests.integration.test_resume import GREEDY, PROMPTS, SAMPLED
from tests.metrics_page import recorded


@pytest.fixture
def config(config):
    return replace(config, decode=replace(config.decode, replicas=2))


@asynccontextmanager
async def two_routers(config):
    """A cluster with a second router, and a client that knows both."""
    async with cluster(config) as local:
        other = await RouterServer.start(config, "router-1", local.directory)
        addresses = [local.router.grpc_address, other.grpc_address]
        try:
            async with Client(addresses) as client:
                yield local, other, client
        finally:
            await other.stop()


async def die(router):
    """As if the process had been killed: no more words to clients, journal and directory."""
    resumable = router.router._resumable
    await end([resumable._writing])
    front_ends, router._front_ends = router._front_ends, None
    await front_ends.close(0)
    await router._heartbeat.stop(remove=False)


class Read:
    """A stream that is read, and how far it is."""

    def __init__(self, events):
        self.stream_id, self.have, self.text, self.logprobs = "", {}, "", []
        self.finish, self.summary, self.suspended = {}, None, []
        self.task = asyncio.create_task(self._read(events))

    async def _read(self, events):
        async for event in events:
            if isinstance(event, Started):
                self.stream_id = event.stream_id
            elif isinstance(event, Tokens):
                ids = self.have.setdefault(event.choice, [])
                assert event.index == len(ids)
                ids += event.ids
                self.text += event.text
                self.logprobs += [token.logprob for token in event.tokens]
                self.finish[event.choice] = event.finish_reason
            elif isinstance(event, Summary):
                self.summary = event
            elif isinstance(event, Resumability):
                self.suspended.append(event.suspended)

    async def has(self, tokens):
        await eventually(lambda: len(self.have.get(0, ())) >= tokens or self.task.done())


async def undisturbed(client, prompt, options):
    whole = Read(client.generate(prompt, **options))
    await whole.task
    return whole


@pytest.mark.parametrize("options", [GREEDY, SAMPLED, {**SAMPLED, "n": 3}])
async def test_a_stream_goes_on_on_another_router(config, options):
    async with two_routers(config) as (local, other, client):
        whole = await undisturbed(client, PROMPTS[1], options)
        read = Read(client.generate(PROMPTS[1], resumable=True, **options))
        await read.has(30)
        await die(local.router)
        await asyncio.wait_for(read.task, 60)
        assert read.have == whole.have
        assert read.text == whole.text or options.get("n")
        assert read.finish == whole.finish
        assert read.logprobs == pytest.approx(whole.logprobs, abs=1e-4) or options.get("n")
        assert read.summary.completion_tokens == whole.summary.completion_tokens
        await eventually(lambda: other.router.running == 0)
        await eventually(lambda: not any(one.load().used for one in local.replicas))


async def test_another_connection_gets_what_the_first_one_lacked(config):
    async with two_routers(config) as (local, other, client):
        whole = await undisturbed(client, PROMPTS[2], SAMPLED)
        read = Read(local.client.generate(PROMPTS[2], resumable=True, **SAMPLED))
        await read.has(20)
        have = len(read.have[0])
        read.task.cancel()
        async with Client(other.grpc_address) as second:
            rest = Read(second.resume(read.stream_id, [have]))
            rest.have[0] = whole.have[0][:have]
            await asyncio.wait_for(rest.task, 60)
        assert rest.have == whole.have and rest.summary
        await eventually(lambda: other.router.running == 0)


async def test_work_without_listeners_is_cancelled_after_a_while(config):
    config = replace(config, journal=replace(config.journal, detached_s=0.3))
    async with two_routers(config) as (local, _other, client):
        read = Read(
            local.client.generate(PROMPTS[2], resumable=True, **GREEDY | {"max_tokens": 1900})
        )
        await read.has(20)
        read.task.cancel()
        await eventually(lambda: not any(one.load().used for one in local.replicas), 10)
        with pytest.raises(Cancelled, match="no client listened"):
            async for _ in client.resume(read.stream_id, [0]):
                pass


async def test_cancel_and_refusals_from_another_router(config):
    async with two_routers(config) as (local, other, _client):
        read = Read(
            local.client.generate(PROMPTS[2], resumable=True, **GREEDY | {"max_tokens": 1900})
        )
        await read.has(20)
        async with Client(other.grpc_address) as second:
            with pytest.raises(InvalidRequest, match="more than the journal"):
                async for _ in second.resume(read.stream_id, [1899]):
                    pass
            with pytest.raises(NotFound):
                async for _ in second.resume("A" * 22):
                    pass
            assert await second.cancel(stream_id=read.stream_id)
            assert not await second.cancel(stream_id="A" * 22)
        with pytest.raises(Cancelled):
            await asyncio.wait_for(read.task, 60)
        await eventually(lambda: not any(one.load().used for one in local.replicas), 10)


async def test_a_router_that_ends_hands_its_streams_over(config):
    async with two_routers(config) as (local, _, client):
        whole = await undisturbed(client, PROMPTS[3], SAMPLED)
        read = Read(client.generate(PROMPTS[3], resumable=True, **SAMPLED))
        await read.has(20)
        before = await leases(config)
        await local.router.drain(0)
        await local.router.router.close()
        ended = before - await leases(config)
        assert [key for key in ended if local.router.id in key], "it waits for the lease to run out"
        await asyncio.wait_for(read.task, 60)
        assert read.have == whole.have and read.text == whole.text


async def leases(config):
    """The keys of the routers' leases in the journal."""
    async with redis.asyncio.Redis.from_url(config.directory.url, decode_responses=True) as raw:
        return set(await raw.keys("*journal:alive:*"))


async def test_a_purge_forgets_the_streams_of_a_tenant(config):
    async with two_routers(config) as (local, _, client):
        options = {"max_tokens": 4, "resumable": True}
        reads = {}
        for tenant in ("a", "b"):
            reads[tenant] = Read(local.client.generate("hello", tenant=tenant, **options))
            await reads[tenant].task
        answer = await request_purge(local.router.grpc_address, "a", OPERATOR_KEY)
        assert answer.streams == 1
        with pytest.raises(NotFound):
            await Read(client.resume(reads["a"].stream_id)).task
        again = Read(client.resume(reads["b"].stream_id))
        await again.task
        assert again.have == reads["b"].have


async def test_streams_go_on_while_redis_stands_still(config):
    redis = EmbeddedRedis.start()
    config = replace(config, directory=replace(config.directory, url=redis.url))
    try:
        async with cluster(config) as local:
            whole = await undisturbed(local.client, PROMPTS[1], GREEDY)
            read = Read(local.client.generate(PROMPTS[1], resumable=True, **GREEDY))
            await read.has(20)
            os.kill(redis.pid, signal.SIGSTOP)
            try:
                await read.has(len(read.have[0]) + 60)
                await eventually(lambda: read.suspended[-1:] == [True])
            finally:
                os.kill(redis.pid, signal.SIGCONT)
            await asyncio.wait_for(read.task, 60)
            assert read.have == whole.have
            again = Read(local.client.resume(read.stream_id))
            await asyncio.wait_for(again.task, 60)
            assert again.have == whole.have and again.text == whole.text
    finally:
        redis.stop()


async def test_the_replica_that_has_the_kv_goes_on(config):
    """Of two decode replicas; it computes no more than the block that was not full."""
    async with two_routers(config) as (local, _, client):
        other = Read(client.generate(PROMPTS[0], **GREEDY))
        await other.has(2)
        read = Read(client.generate(PROMPTS[3], resumable=True, **GREEDY))
        await read.has(60)
        other.task.cancel()
        await eventually(lambda: sum(map(bool, map(in_use, local.decode))) == 1)
        (before,) = [one for one in local.decode if in_use(one)]
        with recorded() as found:
            await die(local.router)
            have = len(read.have[0])
            await read.has(have + 40)
            assert [one for one in local.decode if in_use(one)] == [before]
            await read.task
        cached = found.value("tandem_prefix_hit_tokens_total", pool="decode")
        assert cached > len(PROMPTS[3]) + have - 2 * config.kv.block_size


async def test_a_request_begins_again_whose_client_knew_no_stream(config):
    """Its connection broke before Started came; a client that knows the stream resumes it."""
    async with cluster(config) as local:
        router = local.router.router
        request = GenerateRequest(
            TokenPrompt((1, 2, 3)), SamplingParams(max_tokens=1500), request_id="a", resumable=True
        )
        first = router.generate(request)
        started = await anext(first)
        await first.aclose()
        again = [event async for event in router.generate(request)]
        assert again[0].stream_id != started.stream_id and isinstance(again[-1], Summary)
        # It runs on until the test ends, whatever is sampled.
        slow_steps(local.decode, 0.02)
        endless = SamplingParams(max_tokens=1000, ignore_eos=True)
        request = replace(request, request_id="b", sampling=endless)
        second = router.generate(request)
        for _ in range(2):
            await anext(second)
        await second.aclose()
        with pytest.raises(AlreadyRunning, match="running already"):
            await anext(router.generate(request))


async def test_a_client_that_leaves_a_resumed_stream_leaves_no_reader(config):
    async with cluster(config) as local:
        read = Read(local.client.generate(PROMPTS[1], resumable=True, **GREEDY))
        await read.has(5)
        rest = local.router.router.resume(ResumeRequest(read.stream_id))
        for _ in range(2):
            await anext(rest)
        await rest.aclose()
        tasks = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]
        assert "ResumableStreams._read" not in tasks
        await read.task
