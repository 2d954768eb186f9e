"""The writer: events are handed on once Redis has them, and go on without it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.api import Heartbeat, Progress, Resumability
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.journal import writer
from cluster.journal.store import JournalStore
from cluster.journal.stream import JournaledStream
from engine.errors import Cancelled, NotFound, Unavailable
from tests.cluster.discovery.frozen import Frozen
from tests.cluster.journal.conftest import store_at
from tests.cluster.journal.streams import (
    STARTED,
    Client,
    RouterOfTest,
    calls,
    record,
    running,
    stored_ids,
    summary,
    tokens,
)
from tests.eventually import eventually


async def test_an_event_is_in_the_journal_before_it_is_handed_on(store: JournalStore) -> None:
    async with running(store, "a") as router:
        stream, client = router.open()
        for index in range(20):
            stream.put(tokens(index))
            assert len(client.ids) <= index
            await router.wrote(client, index + 1)
            assert await stored_ids(store, stream.stream_id) == client.ids
        stream.put(summary(20))
        await eventually(lambda: client.last == summary(20), 10)
        entries = await store.read_all(stream.stream_id)
        assert entries[-1].event == summary(20)
        assert client.events[0] == STARTED


async def test_what_comes_during_a_write_is_one_entry_for_each_choice(store: JournalStore) -> None:
    async with running(store, "a") as router:
        stream, client = router.open(n=2)
        for index in range(5):
            for choice in range(2):
                stream.put(tokens(index, choice=choice))
        await eventually(lambda: len(client.events) == 3, 10)
        assert client.events[1:] == [tokens(0, 5), tokens(0, 5, choice=1)]
        entries = await store.read_all(stream.stream_id)
        assert [entry.event for entry in entries] == client.events[1:]


async def test_events_that_are_not_journaled_keep_their_place(store: JournalStore) -> None:
    async with running(store, "a") as router:
        stream, client = router.open()
        events = [tokens(0), Progress(0, "decode", 1), tokens(1), Heartbeat(), tokens(2)]
        for event in events:
            stream.put(event)
        await router.wrote(client, 3)
        assert client.events == [STARTED, *events]
        stream.put(Heartbeat())
        assert client.last == Heartbeat(), "nothing was before it, so it does not wait"


async def test_a_failure_is_the_last_entry_and_no_event_follows(store: JournalStore) -> None:
    async with running(store, "a") as router:
        stream, client = router.open()
        stream.put(tokens(0))
        stream.put(Cancelled("gone"))
        stream.put(tokens(1))
        await eventually(lambda: isinstance(client.last, Cancelled), 10)
        last = (await store.read_all(stream.stream_id))[-1].event
        assert isinstance(last, Cancelled)
        assert last.message == "gone"
        assert client.ids == [100]


async def test_many_streams_share_a_write(store: JournalStore) -> None:
    async with running(store, "a") as router:
        opened = [router.open() for _ in range(200)]
        for index in range(10):
            for stream, _ in opened:
                stream.put(tokens(index))
            await asyncio.sleep(0)
        for stream, client in opened:
            await router.wrote(client, 10)
            assert await stored_ids(store, stream.stream_id) == client.ids


async def test_a_first_token_needs_one_call_and_each_other_one_command(
    store: JournalStore, raw: Any
) -> None:
    async with running(store, "a") as router:
        stream, client = router.open()
        await router.wrote_events(client, 0)
        await raw.config_resetstat()
        stream, client = router.open()
        stream.put(tokens(0))
        await router.wrote(client, 1)
        assert (await calls(raw))["evalsha"] == 1, "the request goes with its first token"
        await raw.config_resetstat()
        for index in range(1, 20):
            stream.put(tokens(index))
            await router.wrote(client, index + 1)
        found = await calls(raw)
        assert found["xadd"] == found["evalsha"] == 19
        assert not found.keys() & {"hmget", "xlen", "hset"}


async def test_a_first_token_does_not_wait_for_other_tokens(
    store: JournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, append = [], store.append

    async def counted(*call: Any) -> Any:
        sizes.append(len(call[-1]))
        return await append(*call)

    monkeypatch.setattr(store, "append", counted)
    async with running(store, "a") as router:
        opened = [router.open() for _ in range(50)]
        for stream, _ in opened:
            stream.put(tokens(0))
        for _, client in opened:
            await router.wrote(client, 1)
        monkeypatch.setattr(writer, "_PACE_S", 0.5)
        sizes.clear()
        opened[0][0].put(tokens(1))
        await router.wrote(opened[0][1], 2)
        for stream, _ in opened:
            stream.put(tokens(len(opened[0][1].ids) if stream is opened[0][0] else 1))
        late, late_client = router.open()
        late.put(tokens(0))
        await router.wrote(late_client, 1)
        assert len(opened[1][1].ids) == 1
        for _, client in opened:
            await router.wrote(client, 2)
        assert sizes == [1, 1, 50]


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
            assert time.monotonic() - began_s < 3 * store.timeout_s
            assert client.suspensions == [True]
            for index in range(2, 500):
                stream.put(tokens(index))
            assert len(client.ids) == 500, "nothing waits"
            late, late_client = router.open()
            late.put(tokens(0))
            assert late_client.events == [STARTED, Resumability(suspended=True), tokens(0)]
        await eventually(lambda: client.suspensions == [True, False], 10)
        await eventually(lambda: late_client.suspensions == [True, False], 10)
        await eventually(lambda: idle_client.suspensions == [True, False], 10)
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
    store = store_at(own_server)
    async with running(store, "a") as router:
        opened = [router.open() for _ in range(20)]
        for stream, client in opened:
            for index in range(300):
                stream.put(tokens(index))
            await router.wrote(client, 300)
        os.kill(own_server.pid, signal.SIGKILL)
        await eventually(lambda: not own_server.alive(), 10)
        for stream, client in opened:
            stream.put(tokens(300))
            await router.wrote(client, 301)
            assert client.suspensions == [True]
        ended, ended_client = opened[0]
        ended.put(summary(301))
        assert ended_client.last == summary(301)
        own_server.revive()
        for stream, client in opened[1:]:
            await eventually(lambda client=client: client.suspensions == [True, False], 10)
            assert await stored_ids(store, stream.stream_id) == client.ids
            stream.put(tokens(301))
            await router.wrote(client, 302)
            assert await stored_ids(store, stream.stream_id) == client.ids
        await eventually(lambda: _ended(store, ended.stream_id), 10)
        assert await stored_ids(store, ended.stream_id) == ended_client.ids
    await store.close()


async def _ended(store: JournalStore, stream_id: str) -> bool:
    try:
        return (await store.find(stream_id, "acme")).state.ended
    except NotFound:
        return False


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


async def test_a_router_that_comes_back_sends_and_writes_nothing_more(store: JournalStore) -> None:
    async with running(store, "old") as old:
        stream, client = old.open()
        stream.put(tokens(0))
        await old.wrote(client, 1)
        await store.take_over(stream.stream_id, "old")  # its fence is another one now
        stream.put(tokens(1))
        await eventually(lambda: client.lost, 10)
        stream.put(tokens(2))
        stream.put(Heartbeat())
        assert client.ids == [100]
        assert await stored_ids(store, stream.stream_id) == [100]


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
        await eventually(lambda: client.lost, 10)
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
            await eventually(lambda: time.monotonic() > until_s, 10)  # the call is under way
        time.sleep(store.timeout_s + 0.5)  # noqa: ASYNC251
        await router.wrote(client, 2)
        assert client.suspensions == []
        await store.take_over(stream.stream_id, "a")
        stream.put(tokens(2))
        await eventually(lambda: client.lost, 10)
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


async def test_a_stream_is_taken_from_a_dead_router(store: JournalStore) -> None:
    async with running(store, "new") as new:
        async with running(store, "old") as old:
            stream, client = old.open()
            for index in range(3):
                stream.put(tokens(index))
                await old.wrote(client, index + 1)
            assert await outcome_of(new, stream.stream_id) == "held"
        adopted, after = await eventually(lambda: adopted_by(new, stream.stream_id), 10)
        assert await outcome_of(new, stream.stream_id) == "held", "it is its own"
        adopted.put(tokens(3))
        await eventually(lambda: len(after.events) == 1, 10)
        assert await stored_ids(store, stream.stream_id) == [100, 101, 102, 103]
        assert (await store.find(stream.stream_id, "acme")).state.owner == "new"


async def outcome_of(router: RouterOfTest, stream_id: str) -> str:
    async with router.writer.taking(stream_id) as taken:
        return taken.outcome


async def adopted_by(router: RouterOfTest, stream_id: str) -> tuple[JournaledStream, Client] | None:
    """The stream once the router owns it; None while it is held."""
    async with router.writer.taking(stream_id) as taken:
        if taken.outcome != "taken":
            return None
        entries, client = await router.store.read_all(stream_id), Client()
        return router.writer.adopt(
            stream_id, taken.fence, record(), entries, client.take, client.lose
        ), client


async def test_a_stream_that_was_taken_and_not_adopted_can_be_taken_again(
    store: JournalStore,
) -> None:
    async with running(store, "b") as one, running(store, "c") as other:
        async with running(store, "a") as owner:
            stream, client = owner.open()
            stream.put(tokens(0))
            await owner.wrote(client, 1)
        await eventually(lambda: _is_taken(one, stream.stream_id), 10)
        adopted, after = await eventually(lambda: adopted_by(other, stream.stream_id), 10)
        adopted.put(tokens(1))
        await other.wrote_events(after, 0)
        assert await stored_ids(store, stream.stream_id) == [100, 101]


async def _is_taken(router: RouterOfTest, stream_id: str) -> bool:
    return await outcome_of(router, stream_id) == "taken"


async def test_a_router_takes_a_stream_over_once_for_all_its_clients(store: JournalStore) -> None:
    async with running(store, "b") as one:
        async with running(store, "a") as owner:
            stream, client = owner.open()
            stream.put(tokens(0))
            await owner.wrote(client, 1)
        await eventually(lambda: _is_taken(one, stream.stream_id), 10)
        tries = await asyncio.gather(*(adopted_by(one, stream.stream_id) for _ in range(5)))
        assert sum(found is not None for found in tries) == 1


async def test_no_stream_is_taken_just_after_redis_came_back(
    store: JournalStore, server: EmbeddedRedis
) -> None:
    """No owner could renew its lease while Redis was away."""
    async with running(store, "new") as new:
        async with running(store, "old") as old:
            stream, client = old.open()
            stream.put(tokens(0))
            await old.wrote(client, 1)
        with Frozen(server):
            await eventually(lambda: new.writer.suspended, 10)
            with pytest.raises(Unavailable):
                await outcome_of(new, stream.stream_id)
            await asyncio.sleep(store.lease_s)
        await eventually(lambda: not new.writer.suspended, 10)
        assert await outcome_of(new, stream.stream_id) == "held"
        await eventually(lambda: _is_taken(new, stream.stream_id), 10)


async def test_a_cancel_reaches_the_owner_from_anywhere(store: JournalStore) -> None:
    async with running(store, "a") as router:
        stream, client = router.open()
        stream.put(tokens(0))
        await router.wrote(client, 1)
        assert not await store.cancel(stream.stream_id, "another")
        assert await store.cancel(stream.stream_id, "acme")
        await eventually(lambda: router.cancelled == [stream.stream_id], 10)
        stream.put(tokens(1))
        stream.put(Cancelled("the request was cancelled"))
        await eventually(lambda: isinstance(client.last, Cancelled), 10)
        assert router.cancelled == [stream.stream_id]
        assert not await store.cancel(stream.stream_id, "acme"), "it has ended"


async def test_a_removed_stream_goes_on_without_the_journal(store: JournalStore) -> None:
    async with running(store, "a") as router:
        stream, client = router.open()
        stream.put(tokens(0))
        await router.wrote(client, 1)
        assert await store.forget_tenant("acme") == 1
        for index in range(1, 5):
            stream.put(tokens(index))
        await router.wrote(client, 5)
        assert client.suspensions == [True]
        with pytest.raises(NotFound):
            await store.find(stream.stream_id, "acme")
        assert await store.forget_tenant("acme") == 0
