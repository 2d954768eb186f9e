"""The journal in Redis: owners and fences, what is refused, and what expires."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.discovery.timed_seal import MOST_AGE_S
from cluster.journal.batches import CHECK, CREATE, ENDED, Appended, NewStream, framed, part
from cluster.journal.entries import entry_bytes
from cluster.journal.keys import new_stream_id
from cluster.journal.store import PIECE, JournalStore, StreamLife
from engine.errors import NotFound, Unavailable
from tests.cluster.discovery.frozen import Frozen
from tests.cluster.discovery.members import OTHER_SECRET
from tests.cluster.journal.conftest import BRIEF, LIFE, store_at
from tests.cluster.journal.streams import record, stored_ids, summary, tokens, unframed

EPOCH = "epoch"


class Owner:
    """A router that appends to one stream by hand. Its parts are checked by Redis."""

    def __init__(self, store: JournalStore, name: str, stream_id: str, fence: int = 1) -> None:
        self.store, self.name, self.stream_id, self.fence = store, name, stream_id, fence
        self.entries: list[bytes] = []

    def framed(self, sequence: int) -> bytes:
        payload = entry_bytes(tokens(sequence - 1), None)
        return self.store.seal.entries(self.stream_id).framed(sequence, self.fence, payload)

    def part(self, count: int, *, create: bool = False, flags: int = CHECK) -> bytes:
        """The part with the next entries, which stand in `entries` from then on."""
        first = len(self.entries) + 1
        self.entries += [self.framed(first + one) for one in range(count)]
        new = None
        if create:
            sealed = self.store.seal.sealed_request(self.stream_id, record())
            new, flags = NewStream(sealed, b"acme"), flags | CREATE
        name = self.stream_id.encode()
        return part(name, self.fence, flags, new, first, self.entries[first - 1 :])

    async def append(self, batch: bytes) -> Appended:
        answers = await self.store.append(self.name, EPOCH, "", "batch", [batch])
        assert answers is not None
        return answers[0]


async def created(store: JournalStore, name: str = "a", count: int = 2) -> Owner:
    await store.beat(name, EPOCH)
    owner = Owner(store, name, new_stream_id())
    assert await owner.append(owner.part(count, create=True)) is Appended.WRITTEN
    return owner


async def test_a_stream_is_found_by_its_tenant_alone(store: JournalStore) -> None:
    owner = await created(store)
    found = await store.find(owner.stream_id, "acme")
    assert found.record.request.tenant == "acme"
    assert (found.state.owner, found.state.alive, found.state.ended) == ("a", True, False)
    for stream_id, tenant in ((owner.stream_id, "evil"), (new_stream_id(), "acme"), ("x", "acme")):
        with pytest.raises(NotFound) as refused:
            await store.find(stream_id, tenant)
        assert refused.value.field == "stream_id"
        assert "no such stream" in refused.value.message


async def test_a_forged_or_moved_request_is_no_stream(store: JournalStore, raw: Any) -> None:
    owner, other = await created(store), await created(store)
    key, other_key = store.keys.stream(owner.stream_id), store.keys.stream(other.stream_id)
    await raw.hset(other_key, "request", await raw.hget(key, "request"))
    with pytest.raises(NotFound):
        await store.find(other.stream_id, "acme")
    sealed = await raw.hget(key, "request")
    await raw.hset(key, "request", sealed.replace(b"acme", b"evil"))
    for tenant in ("acme", "evil"):
        with pytest.raises(NotFound):
            await store.find(owner.stream_id, tenant)


async def test_a_request_that_redis_had_dropped_is_not_written_again(
    store: JournalStore, raw: Any
) -> None:
    owner = await created(store)
    key = store.keys.stream(owner.stream_id)
    for age_s, seen in ((LIFE.whole_s, True), (LIFE.whole_s + MOST_AGE_S + 60, False)):
        old = record(arrived_at=time.time() - age_s)
        await raw.hset(key, "request", store.seal.sealed_request(owner.stream_id, old))
        try:
            assert await store.find(owner.stream_id, "acme")
            assert seen
        except NotFound:
            assert not seen


async def test_a_writer_of_redis_puts_no_tokens_into_a_stream(
    store: JournalStore, raw: Any, server: EmbeddedRedis
) -> None:
    stranger = store_at(server, OTHER_SECRET)
    owner = await created(store, count=3)
    events = store.keys.events(owner.stream_id)
    forger = Owner(stranger, "a", owner.stream_id)
    moved = unframed((await created(store, count=4)).entries[3])
    (_, fields), *_ = await raw.xrange(events)
    for forged in (b"", b"no entry", unframed(forger.framed(4)), moved, fields[b"e"]):
        await raw.xadd(events, {"e": forged}, id="4-0")
        with pytest.raises(NotFound, match="cannot be read"):
            await store.read_all(owner.stream_id)
        await raw.delete(events)
        for number, entry in enumerate(owner.entries, 1):
            await raw.xadd(events, {"e": unframed(entry)}, id=f"{number}-0")
        assert await stored_ids(store, owner.stream_id) == [100, 101, 102]
    await raw.xdel(events, "2-0")
    with pytest.raises(NotFound, match="cannot be read"):
        await store.read_all(owner.stream_id)
    await stranger.close()


async def test_entries_come_in_pieces(store: JournalStore) -> None:
    owner = await created(store, count=3 * PIECE + 5)
    _, first = await store.read(owner.stream_id, 0)
    assert [entry.sequence for entry in first] == list(range(1, PIECE + 1))
    assert len(await stored_ids(store, owner.stream_id)) == 3 * PIECE + 5


async def test_only_a_dead_owners_stream_is_taken_over(store: JournalStore, raw: Any) -> None:
    owner = await created(store)
    assert (await store.take_over(owner.stream_id, "b")).outcome == "held"
    assert (await store.take_over(owner.stream_id, "a")).fence == 2, "an older router of this name"
    await store.leave("a")
    taken = await store.take_over(owner.stream_id, "b")
    assert (taken.outcome, taken.fence, taken.cancelled) == ("taken", 3, False)
    assert await owner.append(owner.part(1)) is Appended.FENCED
    assert len(await stored_ids(store, owner.stream_id)) == 2
    assert (await store.take_over(new_stream_id(), "b")).outcome == "gone"


async def test_an_ended_stream_is_not_taken_over(store: JournalStore) -> None:
    owner = await created(store)
    await owner.append(owner.part(1, flags=ENDED | CHECK))
    await store.leave("a")
    assert (await store.take_over(owner.stream_id, "b")).outcome == "ended"


async def test_a_router_that_takes_over_learns_of_a_cancel(store: JournalStore) -> None:
    owner = await created(store)
    assert await store.cancel(owner.stream_id, "acme")
    assert await owner.append(owner.part(1)) is Appended.CANCELLED
    _, orders = await store.beat("a", EPOCH)
    assert orders == [owner.stream_id]
    await store.leave("a")
    assert (await store.take_over(owner.stream_id, "b")).cancelled


async def test_a_stream_expires_some_time_after_its_end(
    store: JournalStore, raw: Any, server: EmbeddedRedis
) -> None:
    owner = await created(store)
    keys = store.keys.stream(owner.stream_id), store.keys.events(owner.stream_id)
    for key in keys:
        assert LIFE.whole_s - 5 < await raw.ttl(key) <= LIFE.whole_s
    await owner.append(owner.part(1, flags=ENDED | CHECK))
    for key in keys:
        assert LIFE.keep_s - 5 < await raw.ttl(key) <= LIFE.keep_s
    brief = store_at(server, life=StreamLife(60.0, 0.05))
    ended = await created(brief)
    await ended.append(ended.part(1, flags=ENDED | CHECK))
    async with asyncio.timeout(30):
        with pytest.raises(NotFound, match="too long ago"):
            while True:
                await brief.find(ended.stream_id, "acme")
    assert await ended.append(ended.part(1)) is Appended.GONE
    await brief.close()


async def test_a_tenants_streams_are_removed(store: JournalStore, raw: Any) -> None:
    owners = [await created(store) for _ in range(3)]
    assert await store.forget_tenant("another") == 0
    assert await store.forget_tenant("acme") == 3
    for owner in owners:
        with pytest.raises(NotFound):
            await store.find(owner.stream_id, "acme")
        assert await owner.append(owner.part(1)) is Appended.GONE
    assert [key for key in await raw.keys() if b"stream" in key or b"tenant" in key] == []


async def test_an_owner_learns_that_somebody_listens(store: JournalStore) -> None:
    owner = await created(store)
    await store.read(owner.stream_id, 0)
    assert await store.listened_ago_s(owner.stream_id) is None
    await store.read(owner.stream_id, 0, listening=True)
    ago_s = await store.listened_ago_s(owner.stream_id)
    assert ago_s is not None
    assert 0 <= ago_s < 5


async def test_data_that_were_lost_are_another_epoch(store: JournalStore, raw: Any) -> None:
    owner = await created(store)
    assert (await store.beat("b", "another"))[0] == EPOCH
    await raw.flushall()
    batch = owner.part(1)
    assert await store.append("a", EPOCH, "", "1", [batch]) is None
    assert (await store.beat("a", "new"))[0] == "new"
    assert await store.append("a", EPOCH, "", "1", [batch]) is None
    assert await raw.keys("*stream*") == []


async def test_a_newer_owner_wins_where_both_write_a_lost_stream_again(
    store: JournalStore, raw: Any
) -> None:
    old = await created(store)
    new = Owner(store, "b", old.stream_id, fence=2)
    for first, second in ((old, new), (new, old)):
        await raw.flushall()
        await store.beat("a", EPOCH)
        for owner in (first, second):
            owner.entries.clear()
            answer = await owner.append(owner.part(2, create=True))
            fenced = owner is old and first is new
            assert answer is (Appended.FENCED if fenced else Appended.WRITTEN)
        assert (await store.find(old.stream_id, "acme")).state.owner == "b"
        assert len(await store.read_all(old.stream_id)) == 2


@pytest.mark.parametrize("deadlines", [BRIEF])
async def test_every_call_has_a_deadline(store: JournalStore, server: EmbeddedRedis) -> None:
    owner = await created(store)
    batch = owner.part(1)
    with Frozen(server):
        for call in (
            store.append("a", EPOCH, "", "1", [batch]),
            store.beat("a", EPOCH),
            store.find(owner.stream_id, "acme"),
            store.read(owner.stream_id, 0),
            store.take_over(owner.stream_id, "b"),
        ):
            began_s = time.monotonic()
            with pytest.raises(Unavailable):
                await call
            assert time.monotonic() - began_s < store.timeout_s + 10
    # The answer was lost, the entry was not: it is there once, whatever was applied.
    assert await owner.append(batch) is Appended.WRITTEN
    assert await stored_ids(store, owner.stream_id) == [100, 101, 102]


steps = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["append", "again", "take"])),
    max_size=25,
)


@settings(max_examples=40)
@given(steps)
def test_only_the_last_owner_writes_and_every_entry_is_there_once(
    server: EmbeddedRedis, steps: list[tuple[str, str]]
) -> None:
    """Routers take a stream over, and old ones append to it, in any order, also again."""
    asyncio.run(_play(server, steps))


async def _play(server: EmbeddedRedis, steps: list[tuple[str, str]]) -> None:
    store = store_at(server)
    async with redis.asyncio.Redis.from_url(server.url) as client:
        await client.delete(store.keys.epoch, *map(store.keys.alive, "abc"))
    first = await created(store, "a", count=1)
    await store.leave("a")
    routers = {"a": first}
    last = {"a": first.part(0)}
    written = 1
    for name, step in steps:
        if step == "take":
            taken = await store.take_over(first.stream_id, name)
            routers[name] = Owner(store, name, first.stream_id, taken.fence)
            entries = await store.read_all(first.stream_id)
            routers[name].entries = [framed(entry.sealed) for entry in entries]
            assert len(entries) == written
            last[name] = routers[name].part(0)
        elif name in routers:
            newest = routers[name].fence == max(router.fence for router in routers.values())
            if step == "append":
                last[name] = routers[name].part(1)
                written += newest
            answer = await routers[name].append(last[name])
            assert answer is (Appended.WRITTEN if newest else Appended.FENCED)
    entries = await store.read_all(first.stream_id)
    assert await stored_ids(store, first.stream_id) == list(range(100, 100 + written))
    fences = [int.from_bytes(entry.sealed[:4], "big") for entry in entries]
    assert fences == sorted(fences)
    await store.close()


async def test_a_summary_ends_a_stream(store: JournalStore) -> None:
    owner = await created(store, count=1)
    seal = store.seal.entries(owner.stream_id)
    last = seal.framed(2, 1, entry_bytes(summary(), None))
    batch = part(owner.stream_id.encode(), 1, ENDED | CHECK, None, 2, [last])
    assert await owner.append(batch) is Appended.WRITTEN
    state, entries = await store.read(owner.stream_id, 1)
    assert state.ended
    assert [entry.event for entry in entries] == [summary()]
