"""Streams whose replica dies, or whose KV is lost on its way: they go on elsewhere, exactly."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace

import pytest

from cluster.api import Summary, Tokens
from cluster.replica.replica import Replica
from cluster.router import failover
from engine.errors import ReplicaLost
from tests.eventually import eventually
from tests.integration.local import HOST, cluster, in_use
from tests.integration.test_prefixes import ask, expected

LONG = 400
PROMPTS = [[number * step % 256 for number in range(50 + step)] for step in (3, 7, 11, 13)]
GREEDY = {"max_tokens": LONG, "temperature": 0, "ignore_eos": True}
SAMPLED = {
    "max_tokens": 200,
    "temperature": 1.1,
    "seed": 5,
    "repetition_penalty": 1.2,
    "frequency_penalty": 0.3,
    "logprobs": 2,
    "ignore_eos": True,
}


@pytest.fixture
def config(config):
    return replace(
        config,
        prefill=replace(config.prefill, replicas=2, local_prefill_tokens=0),
        decode=replace(config.decode, replicas=2),
    )


class Stream:
    """A request that is read in the background.

    `asked_s` and `came_s` (tokens) are in seconds since the epoch.
    """

    def __init__(self, local, prompt, **options):
        self.ids, self.text, self.logprobs = [], "", []
        self.summary = None
        self.asked_s, self.came_s = time.time(), []
        self.task = asyncio.create_task(self._read(local.client.generate(prompt, **options)))

    async def _read(self, events):
        async for event in events:
            if isinstance(event, Tokens):
                self.came_s.append(time.time())
                assert event.index == len(self.ids)
                self.ids += event.ids
                self.text += event.text
                self.logprobs += [token.logprob for token in event.tokens]
            elif isinstance(event, Summary):
                self.summary = event.choices[0]

    async def has(self, tokens):
        """Wait until so many tokens have come."""
        await eventually(lambda: len(self.ids) >= tokens or self.task.done())


async def die(replica):
    """As if its process had been killed: its servers are gone, and its lease runs out."""
    await replica.heartbeat.stop(remove=False)
    await replica.servers.stop()


def busy(replicas):
    return next(replica for replica in replicas if in_use(replica))


async def test_streams_go_on_when_their_decode_replica_dies(config, model):
    async with cluster(config) as local:
        streams = [Stream(local, prompt, **GREEDY) for prompt in PROMPTS]
        for stream in streams:
            await stream.has(20)
        await die(local.decode[1])
        await asyncio.gather(*(stream.task for stream in streams))
        assert [stream.ids for stream in streams] == [expected(model, p, LONG) for p in PROMPTS]
        assert {stream.summary.decode_replica for stream in streams} == {"decode-0"}
        choices = [row.choices[0] for row in local.router.requests.store]
        moved = [one for one in choices if one.failovers]
        assert moved and {one.decode_replica for one in choices} == {"decode-0"}
        assert all(one.failover_pause_s > 0 and one.recomputed_tokens > 50 for one in moved)
        assert not any(one.recomputed_tokens for one in choices if not one.failovers)
        await eventually(lambda: not in_use(local.decode[0]) and not in_use(local.prefill[0]))


async def test_moved_streams_go_on_while_the_survivor_s_own_run(config, model):
    """Here a step takes far longer than the ITL budget, which leaves 8 streams to a step."""
    config = replace(
        config,
        kv=replace(config.kv, blocks=4000),
        decode=replace(config.decode, replicas=2, itl_budget_ms=0.01),
    )
    prompts = [[number * step % 256 for number in range(200)] for step in range(3, 35, 2)]
    async with cluster(config) as local:
        streams = [Stream(local, one, **GREEDY | {"max_tokens": 1000}) for one in prompts]
        for stream in streams:
            await stream.has(20)
        await die(local.decode[1])
        before = [len(stream.ids) for stream in streams]
        for stream, tokens in zip(streams, before, strict=True):
            await stream.has(tokens + 30)
        assert not any(stream.task.done() for stream in streams)
        for stream, prompt in [*zip(streams, prompts, strict=True)][:4]:
            assert stream.ids[:40] == expected(model, prompt, 40)
        for stream in streams:
            stream.task.cancel()
        await local.idle()


async def test_sampling_penalties_text_and_logprobs_go_on_as_they_were(config):
    async with cluster(config) as local:
        undisturbed = Stream(local, PROMPTS[0], **SAMPLED)
        await undisturbed.task
        failed_over = Stream(local, PROMPTS[0], **SAMPLED)
        await failed_over.has(20)
        died = busy(local.decode)
        await die(died)
        await failed_over.task
        assert failed_over.ids == undisturbed.ids
        assert failed_over.text == undisturbed.text
        assert failed_over.logprobs == pytest.approx(undisturbed.logprobs, abs=1e-4)
        assert failed_over.summary.decode_replica != died.id


async def test_prompts_are_computed_elsewhere_when_their_prefill_replica_dies(config, model):
    """Whatever each of them was at in that moment."""
    prompts = [[number * step % 256 for number in range(900)] for step in range(3, 27, 2)]
    options = GREEDY | {"max_tokens": 30}
    async with cluster(replace(config, kv=replace(config.kv, blocks=2000))) as local:
        streams = [Stream(local, prompt, **options) for prompt in prompts]
        await eventually(lambda: in_use(local.prefill[1]))
        await die(local.prefill[1])
        await asyncio.gather(*(stream.task for stream in streams))
        assert [stream.ids for stream in streams] == [expected(model, p, 30) for p in prompts]
        assert {stream.summary.prefill_replica for stream in streams} >= {"prefill-0"}


async def test_a_broken_link_costs_no_request(config, model):
    """Links end again and again, with KV on them."""
    options = GREEDY | {"max_tokens": 12}
    kv = replace(config.kv, prefix_cache=False, blocks=2000)
    async with cluster(replace(config, kv=kv)) as local:

        async def cut():
            # No stream may lose more, however long its KV is on its way.
            for _ in range(failover.MOST_LOSSES):
                for replica in local.prefill:
                    for link in replica.parts.prefill.sender._links._links.values():
                        link.end("cut by the test")
                await asyncio.sleep(0.02)

        for _ in range(5):
            cutting = asyncio.create_task(cut())
            streams = [Stream(local, prompt, **options) for prompt in PROMPTS]
            await asyncio.gather(cutting, *(stream.task for stream in streams))
            assert [one.ids for one in streams] == [expected(model, p, 12) for p in PROMPTS]
        await local.idle()


async def test_a_stream_waits_for_the_replica_that_replaces_the_only_one(config, model):
    config = replace(
        config,
        prefill=replace(config.prefill, replicas=1),
        decode=replace(config.decode, replicas=1),
    )
    async with cluster(config) as local:
        stream = Stream(local, PROMPTS[0], **GREEDY)
        await stream.has(20)
        await die(local.decode[0])
        await eventually(lambda: not local.router.pools.healthy("decode"))
        assert not stream.task.done()
        local.decode.append(
            await Replica.start(config, "decode", "decode-1", HOST, local.directory)
        )
        try:
            await asyncio.wait_for(stream.task, 60)
            assert stream.ids == expected(model, PROMPTS[0], LONG)
            assert stream.summary.decode_replica == "decode-1"
        finally:
            await local.decode[1].stop()


@pytest.mark.parametrize("failover_timeout_s", [0, 0.3])
async def test_without_another_replica_the_loss_is_raised(config, failover_timeout_s):
    config = replace(
        config,
        decode=replace(config.decode, replicas=1),
        router=replace(config.router, failover_timeout_s=failover_timeout_s),
    )
    async with cluster(config) as local:
        stream = Stream(local, PROMPTS[0], **GREEDY)
        await stream.has(20)
        await die(local.decode[0])
        with pytest.raises(ReplicaLost, match="decode replica decode-0 was lost"):
            await asyncio.wait_for(stream.task, 30)


async def test_failovers_have_a_bound(config, monkeypatch):
    """A request may bring down every replica that computes it."""
    monkeypatch.setattr(failover, "MOST_LOSSES", 1)
    async with cluster(config) as local:
        stream = Stream(local, PROMPTS[0], **GREEDY)
        await stream.has(20)
        await die(busy(local.decode))
        (alive,) = (one for one in local.decode if one.heartbeat.running)
        await eventually(lambda: in_use(alive))
        await die(alive)
        with pytest.raises(ReplicaLost):
            await asyncio.wait_for(stream.task, 30)


async def test_nothing_is_sent_to_a_replica_that_left_after_an_outage(config, model, redis):
    """An outage keeps those that are known for a while, but not those that say that they go."""
    config = replace(config, router=replace(config.router, failover_timeout_s=0))
    async with cluster(config) as local:
        watch = local.router.watch
        os.kill(redis.pid, signal.SIGSTOP)
        try:
            await eventually(lambda: not watch.connected)
        finally:
            os.kill(redis.pid, signal.SIGCONT)
        await eventually(lambda: watch.connected)
        leaving = local.decode[1]
        gone = asyncio.create_task(leaving.drain(20))
        async with asyncio.timeout(30):
            while watch.get("decode-1") is not None:
                await ask(local, PROMPTS[1], max_tokens=3)
        while not gone.done():
            tokens, summary = await ask(local, PROMPTS[1], max_tokens=3)
            assert tokens == expected(model, PROMPTS[1], 3)
            assert summary.decode_replica == "decode-0"
        await gone
        for _ in range(20):
            _, summary = await ask(local, PROMPTS[1], max_tokens=3)
            assert summary.decode_replica == "decode-0"
