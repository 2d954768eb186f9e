"""The writer while Redis stands still, is killed, or has lost entries."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.api import Resumability
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.journal.store import JournalStore
from engine.errors import NotFound
from tests.cluster.discovery.frozen import Frozen
from tests.cluster.journal.conftest import BRIEF, PATIENT, store_at
from tests.cluster.journal.streams import (
    STARTED,
    running,
    stored_ids,
    summary,
    tokens,
)
from tests.eventually import eventually


@pytest.fixture
def deadlines() -> tuple[float, float]:
    return BRIEF


async def test_streams_go_on_while_redis_stands_still(
    store: JournalStore, server: EmbeddedRedis
) -> None:
    async with running(store, "a") as router:
        stream, client = router.open()
        stream.put(tokens(0))
        await router.wrote(client, 1)
        _, idle_client = router.open()
        await router.wrote_events(idle_client, 0)
        with Frozen(server):
            began_s = time.monotonic()
            stream.put(tokens(1))
            await router.wrote(client, 2)
            assert time.monotonic() - began_s < store.timeout_s + 10
            assert client.suspensions == [True]
            for index in range(2, 500):
                stream.put(tokens(index))
            assert len(client.ids) == 500, "nothing waits"
            late, late_client = router.open()
            late.put(tokens(0))
            assert late_client.events == [STARTED, Resumability(suspended=True), tokens(0)]
        await eventually(lambda: client.suspensions == [True, False])
        await eventually(lambda: late_client.suspensions == [True, False])
        await eventually(lambda: idle_client.suspensions == [True, False])
        assert await stored_ids(store, stream.stream_id) == client.ids
        entries = await store.read_all(stream.stream_id)
        assert len(entries) == 500, "each event of a suspended stream is an entry of its own"
        stream.put(tokens(500))
        assert len(client.ids) == 500, "events wait for the journal again"
        await router.wrote(client, 501)
        assert await stored_ids(store, late.stream_id) == late_client.ids == [100]


@pytest.fixture
def own_server() -> Iterator[EmbeddedRedis]:
    server = EmbeddedRedis.start()
    yield server
    server.stop()


async def test_a_redis_that_was_killed_gets_all_streams_again(own_server: EmbeddedRedis) -> None:
    store = store_at(own_server, deadlines=BRIEF)
    async with running(store, "a") as router:
        opened = [router.open() for _ in range(20)]
        for stream, client in opened:
            for index in range(300):
                stream.put(tokens(index))
            await router.wrote(client, 300)
        os.kill(own_server.pid, signal.SIGKILL)
        await eventually(lambda: not own_server.alive())
        for stream, client in opened:
            stream.put(tokens(300))
            await router.wrote(client, 301)
            assert client.suspensions == [True]
        ended, ended_client = opened[0]
        ended.put(summary(301))
        assert ended_client.last == summary(301)
        own_server.revive()
        for stream, client in opened[1:]:
            await eventually(lambda client=client: client.suspensions == [True, False])
            assert await stored_ids(store, stream.stream_id) == client.ids
            stream.put(tokens(301))
            await router.wrote(client, 302)
            assert await stored_ids(store, stream.stream_id) == client.ids
        await eventually(lambda: _ended(store, ended.stream_id))
        assert await stored_ids(store, ended.stream_id) == ended_client.ids
    await store.close()


async def _ended(store: JournalStore, stream_id: str) -> bool:
    try:
        return (await store.find(stream_id, "acme")).state.ended
    except NotFound:
        return False


@pytest.mark.parametrize("deadlines", [PATIENT])
@pytest.mark.parametrize("missing", [range(11, 21), range(1, 11), range(5, 8), range(1, 21)])
async def test_entries_that_redis_lost_are_written_again(
    store: JournalStore, raw: Any, missing: range
) -> None:
    """As after a failover to a replica that was behind."""
    async with running(store, "a") as router:
        stream, client = router.open()
        for index in range(20):
            stream.put(tokens(index))
            await router.wrote(client, index + 1)
        await raw.delete(store.keys.turn("a"))  # a replica has an earlier one, or none
        events = store.keys.events(stream.stream_id)
        known = await raw.xrange(events)
        await raw.xdel(events, *(f"{number}-0" for number in missing))
        if missing[0] > 10:  # a replica does not know the last id either
            await raw.delete(events)
            for number, (_, fields) in enumerate(known[:10], 1):
                await raw.xadd(events, fields, id=f"{number}-0")
        stream.put(tokens(20))
        await router.wrote(client, 21)
        assert await stored_ids(store, stream.stream_id) == client.ids
        assert await raw.ttl(events) > 0
        assert client.suspensions == []


async def test_a_suspended_router_is_lost_once_redis_refuses_it(
    store: JournalStore, server: EmbeddedRedis
) -> None:
    async with running(store, "old") as old:
        stream, client = old.open()
        stream.put(tokens(0))
        await old.wrote(client, 1)
        await store.take_over(stream.stream_id, "old")
        with Frozen(server):
            stream.put(tokens(1))
            await old.wrote(client, 2)
        await eventually(lambda: client.lost)
        assert await stored_ids(store, stream.stream_id) == [100]


async def test_a_pause_of_this_process_suspends_nothing(
    store: JournalStore, server: EmbeddedRedis
) -> None:
    """A router that stood still may be an old one: it must not go on as if Redis were away."""
    async with running(store, "a") as router:
        stream, client = router.open()
        stream.put(tokens(0))
        await router.wrote(client, 1)
        with Frozen(server):
            stream.put(tokens(1))
            until_s = time.monotonic() + store.timeout_s / 2
            await eventually(lambda: time.monotonic() > until_s)  # the call is under way
        time.sleep(store.timeout_s + 0.5)  # noqa: ASYNC251
        await router.wrote(client, 2)
        assert client.suspensions == []
        await store.take_over(stream.stream_id, "a")
        stream.put(tokens(2))
        await eventually(lambda: client.lost)
        assert client.ids == [100, 101]


async def test_a_busy_router_notices_that_redis_is_away(
    store: JournalStore, server: EmbeddedRedis
) -> None:
    """Its timers are late all the time, which excuses a late answer only so often."""
    async with running(store, "a") as router:
        stream, client = router.open()
        stream.put(tokens(0))
        await router.wrote(client, 1)
        with Frozen(server):
            stream.put(tokens(1))
            until_s = time.monotonic() + 20
            while not client.suspensions and time.monotonic() < until_s:
                time.sleep(0.1)  # noqa: ASYNC251
                await asyncio.sleep(0)
        assert client.suspensions[:1] == [True]
        assert client.ids == [100, 101]
