"""A restore drill: Ray's head is killed, and comes back with its state from Redis."""

from __future__ import annotations

import asyncio
import time

import pytest

from engine.errors import TandemError
from tandem_client import Client
from tests import exactness
from tests.e2e.crowd import answer, crowd
from tests.e2e.hosts.ray_hosts import POOLS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(480)]

AWAY_S = 15
RESTORED_S = 120
TOLD_S = 15


async def ask(client, cases, model):
    """Some requests, with pauses: starting Ray takes what the machine has."""
    await asyncio.sleep(1)
    answers = await crowd(client, cases, 4)
    assert exactness.equal(model, cases, [tokens for tokens, _ in answers])
    return len(cases)


async def restored(cluster):
    what = "the head to be restored"
    return await asyncio.to_thread(cluster.until, cluster.restored, RESTORED_S, what)


async def test_requests_go_on_while_the_head_is_away(cluster, cases, model, capsys):
    before = {entry.role: entry.id for entry in await cluster.replicas()}
    async with Client(cluster.grpc) as client:
        cluster.host("head").kill_all()
        lost_s = time.monotonic()
        asked = 0
        while time.monotonic() - lost_s < AWAY_S:
            asked += await ask(client, cases[:8], model)
        coming = asyncio.create_task(restored(cluster))
        while not coming.done():
            asked += await ask(client, cases[:8], model)
        restored_s = await coming
    with capsys.disabled():
        print(f"\nrestored {restored_s:.0f} s after its start; {asked} exact answers meanwhile")
    assert {entry.role: entry.id for entry in await cluster.replicas()} == before
    assert cluster.alive() == sorted(["head", *POOLS])
    await cluster.idle()


async def test_a_replica_that_died_meanwhile_is_replaced_then(cluster, cases, model, capsys):
    before = {entry.role: entry.id for entry in await cluster.replicas()}
    cluster.host("head").kill_all()
    cluster.host("decode").kill("ray::ServeReplica")
    began_s = time.monotonic()
    async with Client(cluster.grpc) as client:
        with pytest.raises(TandemError) as refused:
            while time.monotonic() - began_s < TOLD_S:
                await answer(client, cases[0], 30)
        assert refused.value.retryable
        began_s = time.monotonic()
        await cluster.renewed(before["decode"])
        renewed_s = time.monotonic() - began_s
        await restored(cluster)
        with capsys.disabled():
            print(f"\n{refused.value!r}; a new replica {renewed_s:.0f} s after the head's start")
        after = {entry.role: entry.id for entry in await cluster.replicas()}
        assert {role for role in POOLS if after[role] == before[role]} == {"prefill", "router"}
        await ask(client, cases[:8], model)
    await cluster.idle()
