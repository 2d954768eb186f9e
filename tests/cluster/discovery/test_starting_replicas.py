"""What starting replicas say in the directory: it is sealed, expires, and reads as one line."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import redis.asyncio

from cluster.config.deployment import DirectoryConfig
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.discovery import starting_replicas
from cluster.discovery.redis_directory import Directory
from cluster.discovery.starting_replicas import StartingReplica, StartWatch, bytes_text
from tests.cluster.discovery.members import OTHER_SECRET, SECRET
from tests.eventually import eventually

READS = StartingReplica(
    "decode#a", "decode", "weights", 35.0, 42 * 10**9, 140 * 10**9, "bytes", 1.2e9, 81.6
)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (READS, "weights, 42.0 GB of 140 GB, 1.20 GB/s, about 82 s left"),
        (replace(READS, rate=None, left_s=None), "weights, 42.0 GB of 140 GB"),
        (replace(READS, left_s=600.0), "weights, 42.0 GB of 140 GB, 1.20 GB/s, about 10 min left"),
        (
            StartingReplica("a", "decode", "improvement", 9.0, 3, 45, left_s=126.0),
            "improvement, 3 of 45 steps, about 126 s left",
        ),
        (StartingReplica("a", "decode", "check", 12.3), "check, 12 s"),
        (StartingReplica("a", "decode", "check", 0.3), "check"),
    ],
)
def test_progress_is_one_line(said: StartingReplica, line: str) -> None:
    assert said.progress == line


def test_bytes_have_three_digits() -> None:
    counts = (0, 999, 1000, 3_743_088, 99_949_000, 999_600_000, 14e9, 140e9, 1.5e12)
    assert [bytes_text(count) for count in counts] == [
        *("0 B", "999 B", "1.00 kB", "3.74 MB", "99.9 MB", "1.00 GB", "14.0 GB"),
        *("140 GB", "1.50 TB"),
    ]


async def expired(directory: Directory) -> bool:
    return not await directory.starting.all()


async def test_replicas_say_how_far_they_are_until_it_expires(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await directory.starting.all() == []
    other = StartingReplica("prefill#b", "prefill", "import")
    await directory.starting.tell(other)
    await directory.starting.tell(READS)
    await directory.starting.tell(replace(READS, done=43 * 10**9))
    assert await directory.starting.all() == [replace(READS, done=43 * 10**9), other]
    await directory.starting.withdraw(other.id)
    monkeypatch.setattr(starting_replicas, "LEASE_MS", 30)
    await directory.starting.tell(READS)
    await eventually(lambda: expired(directory))
    assert await directory.members() == []


async def test_a_statement_of_another_writer_is_not_seen(
    directory: Directory, server: EmbeddedRedis
) -> None:
    stranger = Directory.connect(DirectoryConfig(url=server.url), OTHER_SECRET)
    await stranger.starting.tell(READS)
    await stranger.close()
    await directory.starting.tell(replace(READS, id="decode#b"))
    async with redis.asyncio.Redis.from_url(server.url) as client:
        await client.sadd("tandem:starting", b"\xff\xfe", "decode#c")
        await client.set("tandem:starting:decode#c", b"\xff\xfe")
    assert [one.id for one in await directory.starting.all()] == ["decode#b"]


def test_texts_of_other_versions_are_read_or_refused() -> None:
    assert StartingReplica.from_json(READS.to_json()) == READS
    text = '{"id": "a\\u001b[2J", "role": "decode", "stage": "x", "more": 1}'
    assert StartingReplica.from_json(text) == StartingReplica("a?[2J", "decode", "x")
    for bad in ("", "[]", '{"id": "a"}', '{"id":"a","role":"b","stage":"c","done":null}'):
        with pytest.raises(ValueError):
            StartingReplica.from_json(bad)


def test_a_thread_without_an_event_loop_looks(server: EmbeddedRedis) -> None:
    config = DirectoryConfig(url=server.url, namespace="watched")

    async def tell() -> None:
        directory = Directory.connect(config, SECRET)
        await directory.starting.tell(READS)
        await directory.close()

    asyncio.run(tell())
    with StartWatch(Directory.connect(config, SECRET)) as watch:
        assert list(watch.look()) == [READS] == list(watch.look())
    gone = DirectoryConfig(url="unix:///nowhere/redis.sock")
    with StartWatch(Directory.connect(gone, SECRET)) as watch:
        assert list(watch.look()) == []
