"""Prefill on one host, decode on another, Redis on a third: exact, in a burst, and through cuts."""

from __future__ import annotations

import asyncio
import time

import pytest

from engine.errors import TandemError
from tandem_client import Client
from tests import exactness
from tests.e2e.crowd import answer, crowd
from tests.e2e.hosts.ray_hosts import POOLS
from tests.eventually import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(480)]

REPLICA = "ray::ServeReplica"
# Each way. A call of the directory may take a second, a lease lasts three.
SLOW_S, SLOW_FOR_S = 0.15, 7
# Longer than the lease and than a link's silence; shorter than `router.failover_timeout_s`.
CUT_S = 8
TOLD_S = 10
GIVEN_UP_S = 120
NODE_ENDS_S = 60


@pytest.fixture(scope="module")
def interrupted(model):
    """By the host that is cut off: what takes long there."""
    return {
        "decode": [exactness.random_case(model, seed, 20, 1500) for seed in range(2)] * 3,
        "prefill": [exactness.random_case(model, seed, 1500, 64) for seed in range(2, 8)],
    }


async def is_exact(cluster, model, cases, at_once):
    async with Client(cluster.grpc) as client:
        answers = await crowd(client, cases, at_once)
    return exactness.equal(model, cases, [tokens for tokens, _ in answers])


async def test_every_replica_is_on_the_host_of_its_pool(cluster):
    assert cluster.alive() == sorted(["head", *POOLS])
    await cluster.whole()
    replicas = {entry.role: entry for entry in await cluster.replicas()}
    assert set(replicas) == set(POOLS)
    for role, entry in replicas.items():
        host = cluster.host(role)
        assert entry.address.rsplit(":", 1)[0] == host.address
        (title,) = [line for line in host.processes().values() if line.startswith(REPLICA)]
        assert role in title
    assert not any(line.startswith(REPLICA) for line in cluster.host("head").processes().values())


async def test_answers_equal_generate(cluster, cases, model):
    assert await is_exact(cluster, model, cases[:24], 4)
    await cluster.idle()


async def test_a_burst_is_answered(cluster, cases, model):
    assert await is_exact(cluster, model, cases, len(cases))
    await cluster.idle()


async def is_busy(cluster):
    """Whether a replica runs a request."""
    return any(entry.running for entry in await cluster.replicas() if entry.role != "router")


async def test_a_slow_redis_loses_no_replica(cluster, cases, model):
    before = {entry.id for entry in await cluster.replicas()}
    cluster.slow_redis(SLOW_S)
    try:
        began_s = time.monotonic()
        while time.monotonic() - began_s < SLOW_FOR_S:
            assert await is_exact(cluster, model, cases[:8], 4)
            assert {entry.id for entry in await cluster.replicas()} == before
    finally:
        cluster.slow_redis(0.0)
    await cluster.idle()


@pytest.mark.parametrize("name", ["decode", "prefill"])
async def test_a_host_is_cut_off_and_comes_back(cluster, cases, interrupted, model, name, capsys):
    before = {entry.id for entry in await cluster.replicas()}
    wanted = interrupted[name]
    async with Client(cluster.grpc) as client:
        running = [asyncio.create_task(answer(client, case, 120)) for case in wanted]
        await eventually(lambda: is_busy(cluster), poll_s=0.05)
        cluster.switch.cut(name)
        await asyncio.sleep(CUT_S)
        began_s = time.monotonic()
        with pytest.raises(TandemError) as refused:
            await answer(client, cases[0], 60)
        told_s = time.monotonic() - began_s
        cluster.switch.mend(name)
        began_s = time.monotonic()
        ended = await asyncio.gather(*running, return_exceptions=True)
        ended_s = time.monotonic() - began_s
        whole_s = await cluster.whole()
    failures = [result for result in ended if isinstance(result, BaseException)]
    with capsys.disabled():
        print(f"\n{name} cut off: {refused.value!r} within {told_s:.1f} s")
        print(f"{len(failures)} of {len(ended)} streams fail {failures[:1]}")
        print(f"all ended {ended_s:.1f} s after the mend, all is well {whole_s:.1f} s later")
    assert told_s < TOLD_S
    assert all(isinstance(f, TandemError) and f.retryable for f in [*failures, refused.value])
    for case, result in zip(wanted, ended, strict=True):
        assert result in failures or exactness.equal(model, [case], [result[0]])
    assert {entry.id for entry in await cluster.replicas()} == before
    assert await is_exact(cluster, model, cases[:8], 4)
    await cluster.idle()


async def test_a_host_that_ray_gave_up_is_started_anew(cluster, cases, interrupted, model, capsys):
    before = {entry.role: entry.id for entry in await cluster.replicas()}
    async with Client(cluster.grpc) as client:
        running = asyncio.create_task(answer(client, interrupted["decode"][0], 120))
        await eventually(lambda: is_busy(cluster), poll_s=0.05)
        cluster.switch.cut("decode")
        cut_s = time.monotonic()
        with pytest.raises(TandemError) as refused:
            await running
        told_s = time.monotonic() - cut_s
        assert refused.value.retryable
    await asyncio.to_thread(
        cluster.until, lambda: "decode" not in cluster.alive(), GIVEN_UP_S, "Ray to give it up"
    )
    given_up_s = time.monotonic() - cut_s
    cluster.switch.mend("decode")
    # Told that it was given up, the node ends; and is started again.
    await asyncio.to_thread(cluster.nodes["decode"].wait, NODE_ENDS_S)
    renewed_s = await cluster.renewed(before["decode"])
    with capsys.disabled():
        print(f"\na stream hears {refused.value!r} after {told_s:.0f} s; given up after", end=" ")
        print(f"{given_up_s:.0f} s; another replica serves {renewed_s:.0f} s after the start")
    after = {entry.role: entry.id for entry in await cluster.replicas()}
    assert {role for role in POOLS if after[role] == before[role]} == {"prefill", "router"}
    assert await is_exact(cluster, model, cases[:8], 4)
    await cluster.idle()
