"""The writer: events are handed on once Redis has them, and go on without it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.api import Heartbeat, Progress
from cluster.journal import writer
from cluster.journal.store import JournalStore
from engine.errors import Cancelled, NotFound
from tests.cluster.journal.streams import (
    STARTED,
    calls,
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
        await eventually(lambda: client.last == summary(20))
        entries = await store.read_all(stream.stream_id)
        assert entries[-1].event == summary(20)
        assert client.events[0] == STARTED


async def test_what_comes_during_a_write_is_one_entry_for_each_choice(store: JournalStore) -> None:
    async with running(store, "a") as router:
        stream, client = router.open(n=2)
        for index in range(5):
            for choice in range(2):
                stream.put(tokens(index, choice=choice))
        await eventually(lambda: len(client.events) == 3)
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
        await eventually(lambda: isinstance(client.last, Cancelled))
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
        monkeypatch.setattr(writer, "_PACE_S", 3.0)
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


async def test_a_router_that_comes_back_sends_and_writes_nothing_more(store: JournalStore) -> None:
    async with running(store, "old") as old:
        stream, client = old.open()
        stream.put(tokens(0))
        await old.wrote(client, 1)
        await store.take_over(stream.stream_id, "old")  # its fence is another one now
        stream.put(tokens(1))
        await eventually(lambda: client.lost)
        stream.put(tokens(2))
        stream.put(Heartbeat())
        assert client.ids == [100]
        assert await stored_ids(store, stream.stream_id) == [100]


async def test_a_cancel_reaches_the_owner_from_anywhere(store: JournalStore) -> None:
    async with running(store, "a") as router:
        stream, client = router.open()
        stream.put(tokens(0))
        await router.wrote(client, 1)
        assert not await store.cancel(stream.stream_id, "another")
        assert await store.cancel(stream.stream_id, "acme")
        await eventually(lambda: router.cancelled == [stream.stream_id])
        stream.put(tokens(1))
        stream.put(Cancelled("the request was cancelled"))
        await eventually(lambda: isinstance(client.last, Cancelled))
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
