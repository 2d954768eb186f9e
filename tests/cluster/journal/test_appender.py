"""Batches that Redis does not check, and what makes Redis check them again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.journal.appender import BatchAppender
from cluster.journal.batches import CHECK, CREATE, Appended, NewStream, framed, part
from cluster.journal.entries import entry_bytes
from cluster.journal.keys import new_stream_id
from cluster.journal.store import JournalStore
from tests.cluster.journal.conftest import store_at
from tests.cluster.journal.streams import calls, record, stored_ids, tokens

EPOCH = "epoch"


class Owner:
    """A router with one stream. As a writer does, it asks for checks after a change."""

    def __init__(self, store: JournalStore, name: str, stream_id: str, fence: int = 1) -> None:
        self.store, self.name, self.stream_id, self.fence = store, name, stream_id, fence
        self.appender = BatchAppender(store, name)
        self.entries: list[bytes] = []
        self.checked = False

    async def create(self) -> None:
        sealed = self.store.seal.sealed_request(self.stream_id, record())
        assert await self._append(0, NewStream(sealed, b"acme")) is Appended.WRITTEN

    async def write(self, count: int = 1) -> Appended:
        """Append entries, with a check once Redis asks for it."""
        seal = self.store.seal.entries(self.stream_id)
        for _ in range(count):
            payload = entry_bytes(tokens(len(self.entries)), None)
            self.entries.append(seal.framed(len(self.entries) + 1, self.fence, payload))
        answer = await self._append(count) or await self._append(count)
        assert answer is not None
        return answer

    async def _append(self, count: int, new: NewStream | None = None) -> Appended | None:
        self.checked &= self.appender.sure
        flags = (0 if self.checked else CHECK) | (CREATE if new else 0)
        first, name = len(self.entries) - count + 1, self.stream_id.encode()
        batch = part(name, self.fence, flags, new, first, self.entries[first - 1 :])
        answers = await self.appender.append(EPOCH, [batch])
        if answers is None:
            return None
        self.checked = answers[0] in (Appended.WRITTEN, Appended.CANCELLED)
        return answers[0]


async def created(store: JournalStore, name: str = "a", count: int = 3) -> Owner:
    await store.beat(name, EPOCH)
    owner = Owner(store, name, new_stream_id())
    await owner.create()
    for _ in range(count):
        assert await owner.write() is Appended.WRITTEN
    return owner


async def test_an_entry_that_nothing_disturbs_costs_redis_one_command(
    store: JournalStore, raw: Any
) -> None:
    owner = await created(store)
    await raw.config_resetstat()
    for _ in range(10):
        assert await owner.write() is Appended.WRITTEN
    found = await calls(raw)
    assert {name: found.get(name, 0) for name in ("xadd", "hmget", "xlen", "hset")} == {
        "xadd": 10,
        "hmget": 0,
        "xlen": 0,
        "hset": 0,
    }
    assert len(await stored_ids(store, owner.stream_id)) == 13


async def _taken(owner: Owner, raw: Any) -> None:
    await owner.store.leave("a")
    assert (await owner.store.take_over(owner.stream_id, "b")).fence == 2


async def _taken_after_a_release(owner: Owner, raw: Any) -> None:
    await owner.store.release(owner.stream_id, "a")
    assert (await owner.store.take_over(owner.stream_id, "b")).fence == 2


async def _released(owner: Owner, raw: Any) -> None:
    await owner.store.release(owner.stream_id, "a")
    assert await owner.write() is Appended.WRITTEN
    assert (await owner.store.take_over(owner.stream_id, "b")).outcome == "held"


async def _written_anew_by_a_newer_owner(owner: Owner, raw: Any) -> None:
    newer = Owner(owner.store, "b", owner.stream_id, fence=2)
    await newer.create()
    assert await newer.write(3) is Appended.WRITTEN


async def _cancelled(owner: Owner, raw: Any) -> None:
    assert await owner.store.cancel(owner.stream_id, "acme")


async def _forgotten(owner: Owner, raw: Any) -> None:
    assert await owner.store.forget_tenant("acme") == 1


async def _evicted(owner: Owner, raw: Any) -> None:
    await raw.delete(owner.store.keys.events(owner.stream_id))


async def _failed_over(owner: Owner, raw: Any) -> None:
    """A copy of Redis takes over that lacks the last batch, with all that it did."""
    name = owner.store.keys.turn("a")
    prefix, _, number = (await raw.get(name)).decode().rpartition(".")
    await raw.set(name, f"{prefix}.{int(number) - 1}")
    await raw.xdel(owner.store.keys.events(owner.stream_id), "3-0")


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (_taken, Appended.FENCED),
        (_taken_after_a_release, Appended.FENCED),
        (_released, Appended.WRITTEN),
        (_written_anew_by_a_newer_owner, Appended.FENCED),
        (_cancelled, Appended.CANCELLED),
        (_forgotten, Appended.GONE),
        (_evicted, Appended.TORN),
        (_failed_over, Appended.TORN),
    ],
)
async def test_an_owner_learns_of_each_change(
    store: JournalStore, raw: Any, change: Any, answer: Appended
) -> None:
    owner = await created(store)
    await change(owner, raw)
    assert await owner.write() is answer
    left = await raw.keys(store.keys.events("*"))
    assert all([await raw.ttl(key) > 0 for key in left]), "no stream stays for ever"


steps = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["write", "write", "take"])), max_size=25
)


@settings(max_examples=40)
@given(steps)
def test_only_the_last_owner_writes(server: EmbeddedRedis, steps: list[tuple[str, str]]) -> None:
    """Routers take a stream over, and old ones append to it, in any order."""
    asyncio.run(_play(server, steps))


async def _play(server: EmbeddedRedis, steps: list[tuple[str, str]]) -> None:
    store = store_at(server)
    async with redis.asyncio.Redis.from_url(server.url) as client:
        await client.delete(store.keys.epoch, *map(store.keys.alive, "abc"))
    first = await created(store, count=1)
    await store.leave("a")
    routers, newest, written = {"a": first}, first, 1
    for name, step in steps:
        if step == "take":
            taken = await store.take_over(first.stream_id, name)
            newest = routers[name] = Owner(store, name, first.stream_id, taken.fence)
            entries = await store.read_all(first.stream_id)
            assert len(entries) == written
            newest.entries = [framed(entry.sealed) for entry in entries]
        elif name in routers:
            owner = routers[name]
            assert await owner.write() is (Appended.WRITTEN if owner is newest else Appended.FENCED)
            written += owner is newest
    assert await stored_ids(store, first.stream_id) == list(range(100, 100 + written))
    await store.close()
