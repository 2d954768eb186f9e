"""What a request costs whose prompt was cancelled while a replica computed it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from cluster.config.request_log import RequestLogConfig
from cluster.telemetry.requests.row import faults_of
from tests.eventually import eventually
from tests.integration.local import cluster

COMPUTED = 3


def hold(worker, loop):
    """Slices of a pass behind the first few go on once a request was released."""
    held, go_on, seen = asyncio.Event(), asyncio.Event(), []
    release = loop.release

    async def delayed(call, *arguments):
        seen.append(call)
        if len(seen) > COMPUTED:
            held.set()
            await go_on.wait()
        return await call(*arguments)

    def released(job):
        release(job)
        go_on.set()

    worker.pursue, worker.advance = (
        partial(delayed, one) for one in (worker.pursue, worker.advance)
    )
    loop.release = released
    return held


@pytest.mark.parametrize("prefill_replicas", [1, 0])
async def test_a_request_costs_what_was_computed_of_its_prompt(config, prefill_replicas):
    prices = RequestLogConfig(prefill_price=3600.0, decode_price=3600.0)
    prefill = replace(config.prefill, replicas=prefill_replicas, chunk_tokens=64)
    async with cluster(replace(config, request_log=prices, prefill=prefill)) as local:
        parts = (local.prefill or local.decode)[0].parts
        held = hold(parts.worker, (parts.prefill if local.prefill else parts.decode).loop)
        prompt = asyncio.create_task(
            local.client.complete([3] * 1500, max_tokens=9, ignore_eos=True, request_id="gone")
        )
        await asyncio.wait_for(held.wait(), 20)
        assert await local.client.cancel("gone")
        await asyncio.gather(prompt, return_exceptions=True)
        await eventually(lambda: next(iter(local.router.requests.store)).cost)
        (row,) = local.router.requests.store
    (choice,) = row.choices
    assert (row.request_id, row.outcome, choice.ttft_s) == ("gone", "cancelled", None)
    assert 0 < choice.prefill_share_s <= row.total_s + row.time_to_cancel_s
    assert row.cost == pytest.approx(choice.prefill_share_s)
    assert not faults_of(row)
