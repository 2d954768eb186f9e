"""Streams that go over to another router, each to one alone."""

from __future__ import annotations

import asyncio

import pytest

from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.journal.store import JournalStore
from cluster.journal.stream import JournaledStream
from engine.errors import Unavailable
from tests.cluster.discovery.frozen import Frozen
from tests.cluster.journal.conftest import BRIEF
from tests.cluster.journal.streams import (
    Client,
    RouterOfTest,
    record,
    running,
    stored_ids,
    tokens,
)
from tests.eventually import eventually


@pytest.fixture
def deadlines() -> tuple[float, float]:
    return BRIEF


async def test_a_stream_is_taken_from_a_dead_router(store: JournalStore) -> None:
    async with running(store, "new") as new:
        async with running(store, "old") as old:
            stream, client = old.open()
            for index in range(3):
                stream.put(tokens(index))
                await old.wrote(client, index + 1)
            assert await outcome_of(new, stream.stream_id) == "held"
        adopted, after = await eventually(lambda: adopted_by(new, stream.stream_id))
        assert await outcome_of(new, stream.stream_id) == "held", "it is its own"
        adopted.put(tokens(3))
        await eventually(lambda: len(after.events) == 1)
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
        await eventually(lambda: _is_taken(one, stream.stream_id))
        adopted, after = await eventually(lambda: adopted_by(other, stream.stream_id))
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
        await eventually(lambda: _is_taken(one, stream.stream_id))
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
            await eventually(lambda: new.writer.suspended)
            with pytest.raises(Unavailable):
                await outcome_of(new, stream.stream_id)
            await asyncio.sleep(store.lease_s)
        await eventually(lambda: not new.writer.suspended)
        assert await outcome_of(new, stream.stream_id) == "held"
        await eventually(lambda: _is_taken(new, stream.stream_id))
