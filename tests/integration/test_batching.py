"""Closed batches over a whole cluster: all requests are answered, and late ones wait."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from cluster.api import Summary, Tokens
from engine.errors import Cancelled
from tests.eventually import eventually
from tests.integration.local import cluster


def batched(config, batching, prefill, **decode):
    decode = {"batching": batching, "window_ms": 20.0, "max_batch": 4, **decode}
    return replace(
        config,
        prefill=replace(config.prefill, replicas=prefill),
        decode=replace(config.decode, **decode),
    )


@pytest.mark.parametrize("prefill", [0, 1])
@pytest.mark.parametrize("batching", ["static", "window"])
async def test_every_request_of_every_batch_is_answered_as_in_continuous_mode(
    config, batching, prefill
):
    async def ask_all(client):
        asked = (
            client.complete(
                [number + 3] * (10 + number),
                max_tokens=2 + 5 * number % 11,
                ignore_eos=True,
                seed=7,
            )
            for number in range(11)
        )
        return [found.text for found in await asyncio.gather(*asked)]

    async with cluster(batched(config, "continuous", prefill)) as local:
        wanted = await ask_all(local.client)
    async with cluster(batched(config, batching, prefill)) as local:
        assert await ask_all(local.client) == wanted
        await local.idle()


async def test_a_request_that_loses_its_blocks_stays_a_member(config):
    small = replace(
        config, kv=replace(config.kv, blocks=12), router=replace(config.router, kv_overcommit=4.0)
    )
    async with cluster(batched(small, "static", 0)) as local:
        asked = (
            local.client.complete([number + 3] * 30, max_tokens=60, ignore_eos=True)
            for number in range(6)
        )
        found = await asyncio.gather(*asked)
        assert [one.summary.completion_tokens for one in found] == [60] * 6
        assert any(one.summary.choices[0].preemptions for one in found)
        await local.idle()


@pytest.mark.parametrize("prefill", [0, 1])
async def test_a_request_during_a_batch_waits_for_its_end(config, prefill):
    async with cluster(batched(config, "static", prefill)) as local:
        seen = []

        async def stream(name, max_tokens):
            async for event in local.client.generate(
                [5, 6, 7], max_tokens=max_tokens, ignore_eos=True, request_id=name
            ):
                if isinstance(event, Tokens):
                    seen.extend([name] * len(event.ids))
                elif isinstance(event, Summary):
                    seen.append(f"{name} ended")

        long = asyncio.create_task(stream("long", 300))
        await eventually(lambda: seen.count("long") >= 2)
        await stream("late", 4)
        await long
        # Its first token comes from the prefill pool, where there is one, and waits for nobody. All
        # else comes when the batch is over; only first tokens overtake what is on its way then.
        begins = [index for index, name in enumerate(seen) if name == "late"][prefill]
        assert seen[:begins].count("long") > 200


@pytest.mark.parametrize("prefill", [0, 1])
async def test_a_batch_waits_no_longer_than_an_endpoint_of_its_requests_has_it_wait(
    config, prefill
):
    chat = config.endpoints["chat"]
    hasty = replace(chat, batch_window_ms=1.0)
    config = replace(config, endpoints={"chat": chat, "hasty": hasty})
    async with cluster(batched(config, "window", prefill, window_ms=600_000.0)) as local:
        client, options = local.client, {"max_tokens": 4, "ignore_eos": True}
        async with asyncio.timeout(60):
            patient = asyncio.create_task(client.complete([5], **options))
            while not patient.done():
                await client.complete([6], endpoint="hasty", **options)
            await patient
            await client.score([[7, 8]], endpoint="hasty")
        await local.idle()


async def test_with_a_cancelled_batch_the_next_one_begins(config):
    async with cluster(batched(config, "static", 0)) as local:
        client = local.client
        long = asyncio.create_task(
            client.complete([5], max_tokens=900, request_id="long", ignore_eos=True)
        )
        await eventually(lambda: local.decode[0].load().running)
        late = asyncio.create_task(client.complete([6], max_tokens=4, ignore_eos=True))
        await eventually(lambda: local.decode[0].load().waiting)
        assert await client.cancel("long")
        assert (await late).summary.completion_tokens == 4
        with pytest.raises(Cancelled):
            await long
        await local.idle()
