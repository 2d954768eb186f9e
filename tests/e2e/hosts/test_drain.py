"""The chart's preStop hook with a real Ray: nodes go while streams run, and none is hurt."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from tandem_client import Client
from tests import exactness
from tests.e2e.crowd import answer, crowd
from tests.e2e.hosts.ray_hosts import HOOK_LOG, POOLS, SPARE, START_TIMEOUT_S
from tests.eventually import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

# Of lengths of their own, so that they never end all at once.
STREAM_TOKENS = (1500, 1300, 1100, 900)
HOOK_ENDS_S = 300
NODE_ENDS_S = 60


@pytest.fixture(scope="module")
def long(model):
    """What takes long to decode."""
    return [exactness.random_case(model, seed, 20, n) for seed, n in enumerate(STREAM_TOKENS)]


@pytest.fixture(params=["decode"])
def spare(cluster, request):
    """A second node of a pool; in the end there is the first alone, whatever happened."""
    cluster.start_spare(request.param)
    cluster.until(lambda: SPARE in cluster.alive(), START_TIMEOUT_S, "the spare node")
    yield request.param
    cluster.end_node(SPARE)
    if request.param not in cluster.nodes:
        cluster.start_node(request.param)


@dataclass
class Streamed:
    """A stream that ended whole: by which decode replica, and when."""

    decode_replica: str
    ended_s: float


@asynccontextmanager
async def streams(cluster, cases, model):
    """Streams one after the other, as many at a time as there are cases, until the end of this."""
    done, enough = [], asyncio.Event()

    async def one_after_the_other(client, case):
        while not enough.is_set():
            tokens, summary = await answer(client, case, 120)
            assert exactness.equal(model, [case], [tokens])
            done.append(Streamed(summary.choices[0].decode_replica, time.monotonic()))

    async with Client(cluster.grpc) as client, asyncio.TaskGroup() as running:
        for case in cases:
            running.create_task(one_after_the_other(client, case))
        try:
            yield done
        finally:
            enough.set()


async def replicas_of(cluster, role):
    return {entry.id for entry in await cluster.replicas() if entry.role == role}


async def left(cluster, replica):
    """Waits until the router knows it no more; returns when that was."""

    async def is_gone():
        return replica not in await replicas_of(cluster, "decode")

    await eventually(is_gone, HOOK_ENDS_S, poll_s=0.1)
    return time.monotonic()


async def drained(cluster, name):
    """Ends the node of a host as Kubernetes ends a pod: first the hook, then what is left."""
    hook = cluster.start_hook(name)
    assert await asyncio.to_thread(hook.wait, HOOK_ENDS_S) == 0
    text = (cluster.host(name).folder / HOOK_LOG).read_text()
    assert "not drained" not in text and "still run" not in text
    await asyncio.to_thread(
        cluster.until, lambda: name not in cluster.alive(), NODE_ENDS_S, "the node to be gone"
    )
    cluster.end_node(name)


async def test_a_node_is_drained_under_streams(cluster, spare, long, cases, model, capsys):
    (before,) = await replicas_of(cluster, "decode")
    async with streams(cluster, long, model) as done:
        began_s = time.monotonic()
        leaving = asyncio.create_task(left(cluster, before))
        await drained(cluster, "decode")
        left_s = await leaving
        drained_s = time.monotonic()
    with capsys.disabled():
        print(f"\n{len(done)} streams; the replica left after {left_s - began_s:.0f} s", end=", ")
        print(f"its node was gone after {drained_s - began_s:.0f} s", end=", ")
        there = sum(s.decode_replica == before and s.ended_s > left_s for s in done)
        print(f"{there} ended there after it left")
    assert cluster.alive() == sorted(["head", "prefill", "router", SPARE])
    (after,) = await replicas_of(cluster, "decode")
    assert {stream.decode_replica for stream in done} == {before, after}
    # While it was drained some ended there. Whether one still ran when it left is chance: all that
    # were running may have ended just before.
    assert any(s.decode_replica == before for s in done if s.ended_s > began_s)
    async with Client(cluster.grpc) as client:
        answers = await crowd(client, cases[:8], 4)
    assert exactness.equal(model, cases[:8], [tokens for tokens, _ in answers])
    # And back: a node that has been drained is started again, and the other one goes.
    cluster.start_node("decode")
    cluster.until(lambda: "decode" in cluster.alive(), START_TIMEOUT_S, "the node to be back")
    await drained(cluster, SPARE)
    await cluster.whole()
    assert after not in await replicas_of(cluster, "decode")
    assert cluster.alive() == sorted(["head", *POOLS])
    await cluster.idle()


async def again_and_again(client, cases, model, enough, done):
    """One request after the other; notes by which prefill replica, and when it ended."""
    for case in itertools.cycle(cases):
        if enough.is_set():
            return
        tokens, summary = await answer(client, case, 120)
        assert exactness.equal(model, [case], [tokens])
        done.append((summary.choices[0].prefill_replica, time.monotonic()))


@pytest.mark.parametrize("spare", ["prefill"], indirect=True)
async def test_a_prefill_node_is_drained_under_prompts(cluster, spare, cases, model, capsys):
    (before,) = await replicas_of(cluster, spare)
    done, enough = [], asyncio.Event()
    async with Client(cluster.grpc) as client, asyncio.TaskGroup() as running:
        for first in range(4):
            running.create_task(again_and_again(client, cases[first::4], model, enough, done))
        try:
            await eventually(lambda: len(done) >= 4, HOOK_ENDS_S)
            began_s = time.monotonic()
            await drained(cluster, spare)
            drained_s = time.monotonic()
            await eventually(lambda: done[-1][1] > drained_s, HOOK_ENDS_S)
        finally:
            enough.set()
    (after,) = await replicas_of(cluster, spare)
    meanwhile = [replica for replica, ended_s in done if began_s < ended_s]
    with capsys.disabled():
        print(f"\n{len(meanwhile)} answers in {drained_s - began_s:.0f} s, none failed")
    assert set(meanwhile) == {before, after}
    # And back: a node that has been drained is started again, and the other one goes.
    cluster.start_node(spare)
    cluster.until(lambda: spare in cluster.alive(), START_TIMEOUT_S, "the node to be back")
    await drained(cluster, SPARE)
    await cluster.whole()
    await cluster.idle()
