"""A router, the link of a host, and a host are lost under streams, which go on exactly."""

from __future__ import annotations

import asyncio
import time

import pytest
from redis.asyncio import Redis

from tandem_client import Client
from tests import exactness
from tests.e2e.hosts.ray_hosts import REDIS_PORT
from tests.e2e.two_hosts.reading import Reading
from tests.eventually import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(480)]

# On a host of its own each is below 3 s. Here both hosts, Ray and Redis share the cores.
PAUSE_S = 10
# Longer than all leases and silences, shorter than Ray's patience.
CUT_S = 8
WHOLE_S = 120


async def has_begun(streams):
    """Waits until all streams have some tokens."""
    for stream in streams:
        await eventually(lambda: len(stream.ids) >= 30 or stream.task.done(), 60)  # noqa: B023
        assert not stream.task.done()


async def ended(streams, since_s):
    """Waits for the ends of the streams; returns the longest pause of each since then."""
    await asyncio.wait_for(asyncio.gather(*(one.task for one in streams)), 120)
    return [one.pause_s(since_s) for one in streams]


def is_exact(model, cases, streams):
    return exactness.equal(model, cases, [tuple(one.ids) for one in streams])


def told(capsys, what, pauses):
    with capsys.disabled():
        print(f"\n{what}: the streams paused", ", ".join(f"{one:.1f} s" for one in pauses))
    assert max(pauses) < PAUSE_S


async def test_a_router_dies(cluster, cases, model, capsys):
    await eventually(cluster.is_complete, WHOLE_S, 0.25)
    async with Client([cluster.router("two"), cluster.router("one")]) as client:
        streams = [Reading.of(client, case, resumable=True) for case in cases]
        await has_begun(streams)
        cluster.kill_replica("two", "router")
        pauses = await ended(streams, time.monotonic())
    assert is_exact(model, cases, streams)
    told(capsys, "a router died", pauses)
    await eventually(cluster.is_complete, WHOLE_S, 0.25)
    await cluster.idle()


async def entries(cluster, streams):
    """What the journal has of the streams."""
    async with Redis(host=cluster.host("redis").address, port=REDIS_PORT) as redis:
        found = {}
        for stream in streams:
            async for key in redis.scan_iter(f"*:stream:{stream.stream_id}:events"):
                found[key] = await redis.xrange(key)
        return found


async def test_a_host_is_cut_off(cluster, cases, model, capsys):
    """Its router writes nothing more to streams that the other router took over."""
    await eventually(cluster.is_complete, WHOLE_S, 0.25)
    near, far = cluster.router("one"), cluster.router("two")
    async with Client(near) as client, Client(far) as other:
        streams = [Reading.of(client, case, resumable=False) for case in cases]
        theirs = [Reading.of(other, case, resumable=True) for case in cases[:2]]
        await has_begun([*streams, *theirs])
        cluster.switch.cut("two")
        cut_s = time.monotonic()
        try:
            had = [tuple(one.ids) for one in theirs]
            rest = [
                Reading(client.resume(one.stream_id, [len(ids)], timeout_s=120), ids)
                for one, ids in zip(theirs, had, strict=True)
            ]
            for one, before in zip(rest, theirs, strict=True):
                one.arrivals_s += before.arrivals_s[-1:]
            pauses = await ended([*streams, *rest], cut_s)
            whole = await entries(cluster, theirs)
            await eventually(lambda: time.monotonic() > cut_s + CUT_S, 2 * CUT_S, 0.1)
        finally:
            cluster.switch.mend("two")
        await eventually(cluster.is_complete, WHOLE_S, 0.25)
        await cluster.idle()
        for one in theirs:
            one.task.cancel()
        await asyncio.gather(*(one.task for one in theirs), return_exceptions=True)
        assert len(whole) == len(theirs) and await entries(cluster, theirs) == whole
    assert is_exact(model, cases, streams) and is_exact(model, cases[:2], rest)
    told(capsys, "a host was cut off", pauses)
    await cluster.idle()


async def test_a_host_dies(cluster, cases, model, capsys):
    """With its router, its replicas and its node; the cluster does not come back from it."""
    await eventually(cluster.is_complete, WHOLE_S, 0.25)
    both = [cluster.router("two"), cluster.router("one")]
    async with Client(both) as client, Client(both[1]) as other:
        streams = [Reading.of(client, case, resumable=True) for case in cases[:2]]
        streams += [Reading.of(other, case, resumable=False) for case in cases[2:]]
        await has_begun(streams)
        died_s = time.monotonic()
        cluster.host("two").kill_all()
        pauses = await ended(streams, died_s)
    assert is_exact(model, cases, streams)
    told(capsys, "a host died", pauses)
    await cluster.idle()
