"""Tails: a client gets the rest of a stream while it is written, from any router."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest

from cluster.api import Summary, Tokens
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.journal.cursor import Cursor
from cluster.journal.store import PIECE, JournalStore
from cluster.journal.tail import JournalTail, StreamOrphaned
from engine.errors import Cancelled, InvalidRequest, NotFound
from tests.cluster.discovery.frozen import Frozen
from tests.cluster.journal.conftest import BRIEF
from tests.cluster.journal.streams import RouterOfTest, running, summary, tokens
from tests.eventually import eventually


def tail_of(
    router: RouterOfTest, stream_id: str, have: Sequence[int] = (), n: int = 1
) -> JournalTail:
    return JournalTail(router.store, stream_id, Cursor(have, n), router.writer.watch)


async def collected(tail: JournalTail) -> list[Tokens | Summary]:
    await tail.find()
    return await rest_of(tail)


async def rest_of(tail: JournalTail) -> list[Tokens | Summary]:
    return [event async for event in tail.events()]


async def test_a_reconnecting_client_gets_each_missing_event_once(store: JournalStore) -> None:
    async with running(store, "a") as owner, running(store, "b") as other:
        stream, client = owner.open()
        for index in range(3 * PIECE):
            stream.put(tokens(index))
            await owner.wrote(client, index + 1)
        readers = [
            asyncio.create_task(collected(tail_of(router, stream.stream_id, have)))
            for router in (owner, other)
            for have in ([], [5], [3 * PIECE])
        ]
        await asyncio.sleep(0.1)
        for index in range(3 * PIECE, 3 * PIECE + 20):
            stream.put(tokens(index))
            await owner.wrote(client, index + 1)
        stream.put(summary(3 * PIECE + 20))
        async with asyncio.timeout(30):
            results = await asyncio.gather(*readers)
        # A reader may have the end before the writer has the answer of Redis.
        await eventually(lambda: client.last == summary(3 * PIECE + 20))
        sent = client.events[1:]
        assert results == [sent, sent[5:], sent[3 * PIECE :]] * 2


async def test_a_tail_of_this_router_is_woken_at_once(store: JournalStore) -> None:
    async with running(store, "a") as router:
        stream, client = router.open()
        stream.put(tokens(0))
        await router.wrote(client, 1)
        tail = tail_of(router, stream.stream_id, [1])
        await tail.find()
        async with aclosing(tail.events()) as events:
            waits = []
            for index in range(1, 12):
                waiting = asyncio.ensure_future(anext(events))
                await asyncio.sleep(0.05)
                began_s = time.monotonic()
                stream.put(tokens(index))
                assert await waiting == tokens(index)
                waits.append(time.monotonic() - began_s)
        assert sorted(waits)[5] < 0.7, "a poll would take a second"


async def test_a_tail_that_does_not_follow_ends_behind_what_there_is(store: JournalStore) -> None:
    async with running(store, "a") as owner, running(store, "b") as other:
        stream, client = owner.open()

        async def found() -> list[Tokens | Summary]:
            cursor = Cursor([1], 1)
            tail = JournalTail(
                other.store, stream.stream_id, cursor, other.writer.watch, follow=False
            )
            async with asyncio.timeout(30):
                return await collected(tail)

        for index in range(2 * PIECE):
            stream.put(tokens(index))
            await owner.wrote(client, index + 1)
        assert await found() == client.events[2:]
        stream.put(Cancelled("enough"))
        await eventually(lambda: len(client.events) == 2 * PIECE + 2)
        with pytest.raises(Cancelled) as ended:
            await found()
        assert ended.value.ended_stream


async def test_a_wrong_cursor_is_refused_before_any_event(store: JournalStore) -> None:
    async with running(store, "a") as router:
        stream, client = router.open(n=2)
        stream.put(tokens(0, 4))
        stream.put(tokens(0, 2, choice=1))
        await router.wrote_events(client, 2)
        for have in ([3], [5], [0, 1], [4, 3]):
            with pytest.raises(InvalidRequest, match="have") as refused:
                await tail_of(router, stream.stream_id, have, n=2).find()
            assert refused.value.field == "have"


async def test_a_tail_ends_with_the_failure_of_its_stream(store: JournalStore) -> None:
    async with running(store, "a") as router:
        stream, client = router.open()
        stream.put(tokens(0))
        stream.put(Cancelled("it was cancelled"))
        await eventually(lambda: isinstance(client.last, Cancelled))
        tail, got = tail_of(router, stream.stream_id), []
        await tail.find()
        with pytest.raises(Cancelled, match="it was cancelled"):
            async for event in tail.events():
                got.append(event)  # noqa: PERF401
        assert got == [tokens(0)]


@pytest.mark.parametrize("deadlines", [BRIEF])
async def test_a_tail_says_when_the_router_of_its_stream_is_dead(store: JournalStore) -> None:
    async with running(store, "b") as other:
        async with running(store, "a") as owner:
            stream, client = owner.open()
            stream.put(tokens(0))
            await owner.wrote(client, 1)
        tail = tail_of(other, stream.stream_id, [1])
        await tail.find()
        async with asyncio.timeout(30):
            with pytest.raises(StreamOrphaned):
                async for _ in tail.events():
                    raise AssertionError("nothing was written")


@pytest.mark.parametrize("deadlines", [BRIEF])
async def test_a_tail_waits_through_an_outage_of_redis(
    store: JournalStore, server: EmbeddedRedis
) -> None:
    async with running(store, "a") as owner, running(store, "b") as other:
        stream, client = owner.open()
        stream.put(tokens(0))
        await owner.wrote(client, 1)
        tail = tail_of(other, stream.stream_id)
        await tail.find()
        reader = asyncio.create_task(rest_of(tail))
        await asyncio.sleep(0.1)
        with Frozen(server):
            await eventually(lambda: client.suspensions == [True])
            stream.put(tokens(1))
            stream.put(summary(2))
        async with asyncio.timeout(30):
            assert await reader == [tokens(0), tokens(1), summary(2)]


async def test_a_reader_is_known_to_the_owner(store: JournalStore) -> None:
    async with running(store, "a") as owner, running(store, "b") as other:
        stream, client = owner.open()
        stream.put(tokens(0))
        await owner.wrote(client, 1)
        assert await store.listened_ago_s(stream.stream_id) is None
        reader = asyncio.create_task(collected(tail_of(other, stream.stream_id)))
        await eventually(lambda: store.listened_ago_s(stream.stream_id))
        stream.put(summary())
        await reader


async def test_a_stream_that_is_removed_ends_its_tails(store: JournalStore) -> None:
    async with running(store, "a") as router:
        stream, client = router.open()
        stream.put(tokens(0))
        await router.wrote(client, 1)
        reader = asyncio.create_task(collected(tail_of(router, stream.stream_id)))
        await asyncio.sleep(0.1)
        await store.forget_tenant("acme")
        with pytest.raises(NotFound):
            await reader


async def test_many_tails_poll_less_often(store: JournalStore) -> None:
    async with running(store, "a") as owner, running(store, "b") as other:
        stream, client = owner.open()
        stream.put(tokens(0))
        await owner.wrote(client, 1)
        reads = 0
        read = store.read

        async def counted(*args: Any, **options: Any) -> Any:
            nonlocal reads
            reads += 1
            return await read(*args, **options)

        store.read = counted  # type: ignore[method-assign]
        tails = [tail_of(other, stream.stream_id) for _ in range(100)]
        readers = [asyncio.create_task(collected(tail)) for tail in tails]
        await eventually(lambda: store.tails == 100)
        began_s = time.monotonic()
        await eventually(lambda: reads > 600)
        assert time.monotonic() - began_s > 0.5, "100 tails at 50 polls would take 0.12 s"
        stream.put(summary())
        async with asyncio.timeout(30):
            assert await asyncio.gather(*readers) == [[tokens(0), summary()]] * 100
        assert store.tails == 0
