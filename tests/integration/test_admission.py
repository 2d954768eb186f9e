"""Admission on a real cluster: refused with a time, queued for capacity, nothing left behind."""

import asyncio
from dataclasses import replace

import pytest

from cluster.config.endpoints import EndpointConfig
from engine.errors import Overloaded
from tests.eventually import eventually
from tests.integration.local import cluster, slow_steps


async def test_refused_requests_are_served_when_they_return(config):
    """The budget is so small that no two prompts can wait for each other."""
    endpoint = EndpointConfig(ttft_budget_ms=1, itl_budget_ms=60_000)
    hasty = replace(
        config,
        endpoints={"chat": endpoint},
        prefill=replace(config.prefill, local_prefill_tokens=0),
    )
    refusals = []
    async with cluster(hasty) as local:

        async def served(number):
            for _ in range(200):
                try:
                    return await local.client.complete([number + 1] * 300, max_tokens=2)
                except Overloaded as error:
                    assert error.retry_after_s is not None and 0 < error.retry_after_s < 60
                    refusals.append(error)
                    await asyncio.sleep(error.retry_after_s)
            raise AssertionError("refused for ever")

        async with asyncio.timeout(100):
            await asyncio.gather(*(served(number) for number in range(8)))
        await local.idle()
        tracker, pools = local.router.placement.load_tracker, local.router.pools
        # The record of the router has its requests, as of its last heartbeat.
        await eventually(lambda: not any(map(tracker.requests, pools.members())))
        assert all(not tracker.backlog(record.id).remaining() for record in pools.members())
    assert refusals


async def test_promised_blocks_are_free_so_no_request_is_preempted(config):
    endpoint = replace(config.endpoints["chat"], lane="batch")
    tight = replace(
        config,
        kv=replace(config.kv, blocks=40),
        endpoints={"chat": endpoint},
    )
    async with cluster(tight) as local:

        async def preemptions(number):
            events = local.client.generate([number + 1] * 100, max_tokens=200, ignore_eos=True)
            summary = [event async for event in events][-1]
            assert summary.completion_tokens == 200
            return sum(choice.preemptions for choice in summary.choices)

        assert sum(await asyncio.gather(*(preemptions(n) for n in range(6)))) == 0
        await local.idle()


async def test_replicas_report_to_the_router(config):
    async with cluster(config) as local:
        await eventually(lambda: not local.router.pools.stale())
        loads = [record.load for record in local.router.pools.healthy("decode")]
        assert all(load.blocks_total == 400 and load.streams == 0 for load in loads)


def with_hasty(config, gap_ms):
    """Streams of the endpoint `hasty` are promised tokens at most so far apart."""
    hasty = EndpointConfig(ttft_budget_ms=4_000, itl_budget_ms=gap_ms)
    return replace(config, endpoints=config.endpoints | {"hasty": hasty})


async def test_an_endpoints_itl_is_what_its_streams_are_admitted_by(config):
    async with cluster(with_hasty(config, gap_ms=1)) as local:
        slow_steps(local.decode, 0.02)
        events = local.client.generate([1] * 50, max_tokens=900, ignore_eos=True)
        await anext(events)
        with pytest.raises(Overloaded, match="inter-token latency would be too long"):
            await local.client.complete([2] * 50, max_tokens=3, endpoint="hasty")
        await local.client.complete([3] * 50, max_tokens=3)
        await events.aclose()
        await local.idle()


async def test_what_steps_take_is_learned_from_what_replicas_report(config):
    """They are guessed to take 2.4 ms, which would keep the gap."""
    async with cluster(with_hasty(config, gap_ms=20)) as local:
        slow_steps(local.decode, 0.04)
        events = local.client.generate([1] * 50, max_tokens=900, ignore_eos=True)
        await anext(events)

        async def until_refused():
            while True:
                await local.client.complete([2] * 50, max_tokens=1, endpoint="hasty")

        with pytest.raises(Overloaded, match="inter-token latency would be too long"):
            async with asyncio.timeout(20):
                await until_refused()
        await events.aclose()
        await local.idle()
