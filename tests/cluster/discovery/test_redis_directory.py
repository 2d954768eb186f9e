"""The directory and its leases, over a Redis of its own."""

from __future__ import annotations

import asyncio
import time

import pytest
import redis.asyncio

from cluster.config.deployment import DirectoryConfig
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.discovery.redis_directory import Directory
from cluster.discovery.timed_seal import MOST_AGE_S, TimedSeal
from engine.errors import ConfigError, Unavailable
from tests.cluster.discovery.frozen import Frozen
from tests.cluster.discovery.members import OTHER_SECRET, SECRET, record


async def test_members_come_and_go(directory: Directory) -> None:
    assert await directory.members() == []
    await directory.register(record("b", "decode"))
    await directory.register(record("a"))
    assert await directory.members() == [record("a"), record("b", "decode")]
    await directory.remove("a")
    await directory.remove("a")
    assert await directory.members() == [record("b", "decode")]


@pytest.mark.parametrize("lease_s", [2.0])
async def test_a_lease_that_is_not_renewed_runs_out(
    directory: Directory, server: EmbeddedRedis
) -> None:
    await directory.register(record("kept"))
    began_s = time.monotonic()
    await directory.register(record("dead"))
    async with asyncio.timeout(30):
        while await directory.members() != [record("kept")]:
            await directory.renew(record("kept"))
    assert time.monotonic() - began_s > directory.lease_s / 2
    async with redis.asyncio.Redis.from_url(server.url) as client:
        assert await client.smembers("tandem:replicas") == {b"kept"}


async def test_an_unreadable_record_is_passed_over(
    directory: Directory, server: EmbeddedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    await directory.register(record("good"))
    key = "tandem:replica:bad"
    async with redis.asyncio.Redis.from_url(server.url) as client:
        seal = TimedSeal(SECRET).of("replica record", key, "nonsense")
        await client.set(key, f"{seal} nonsense")
        await client.sadd("tandem:replicas", "bad")
    assert await directory.members() == [record("good")]
    assert "unreadable record" in caplog.text


async def test_a_writer_of_redis_registers_no_router_and_no_replica(
    directory: Directory, server: EmbeddedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Directory.connect(DirectoryConfig(url=server.url), OTHER_SECRET)
    elsewhere = Directory.connect(DirectoryConfig(url=server.url, namespace="other"), SECRET)
    await directory.register(record("good"))
    await stranger.register(record("of-another-secret", "router"))
    await elsewhere.register(record("of-another-namespace", "router"))
    async with redis.asyncio.Redis.from_url(server.url, decode_responses=True) as client:

        async def forge(name: str, value: str) -> None:
            await client.set(f"tandem:replica:{name}", value)
            await client.sadd("tandem:replicas", name)

        good = await client.get("tandem:replica:good")
        await forge("plain", record("plain", "router").to_json())
        await forge("copied", good)
        await forge("changed", good.replace('"prefill"', '"router"'))
        moved = await client.get("tandem:other:replica:of-another-namespace")
        await forge("of-another-namespace", moved)
        for _ in range(3):
            assert await directory.members() == [record("good")]
        await client.set("tandem:replica:good", good.replace("127.0.0.1:1", "127.0.0.1:2"))
        assert await directory.members() == []
    for one in (stranger, elsewhere):
        await one.close()
    assert caplog.text.count("without a seal of this cluster") == 1


async def test_a_recorded_record_is_not_seen_once_it_is_old(
    directory: Directory, server: EmbeddedRedis
) -> None:
    await directory.register(record("dead", "router"))
    async with redis.asyncio.Redis.from_url(server.url, decode_responses=True) as client:
        key = "tandem:replica:dead"
        _, text = (await client.get(key)).split(" ", 1)
        for age_s, seen in ((MOST_AGE_S / 2, True), (MOST_AGE_S + 60, False)):
            sealed = TimedSeal(SECRET, clock=lambda age_s=age_s: time.time() - age_s)
            await client.set(key, f"{sealed.of('replica record', key, text)} {text}")
            assert bool(await directory.members()) == seen


async def test_every_call_has_a_deadline(directory: Directory, server: EmbeddedRedis) -> None:
    await directory.ping()
    with Frozen(server):
        started = time.monotonic()
        with pytest.raises(Unavailable, match=r"^Redis \(directory\.url\): "):
            await directory.members()
        assert time.monotonic() - started < 10
    # An answer that came too late is not taken for the next call's.
    await directory.register(record())
    assert await directory.members() == [record()]


async def test_a_directory_that_is_not_there_is_unavailable() -> None:
    nowhere = Directory.connect(DirectoryConfig(url="unix:///nonexistent/redis.sock"), SECRET)
    with pytest.raises(Unavailable, match=r"^Redis \(directory\.url\): "):
        await nowhere.ping()
    await nowhere.close()


@pytest.mark.parametrize("url", [None, "http://x"])
def test_a_bad_url_is_a_config_error(url: str | None) -> None:
    with pytest.raises(ConfigError, match=r"directory\.url"):
        Directory.connect(DirectoryConfig(url=url), SECRET)


async def test_stop_is_asked_for_and_heard(directory: Directory) -> None:
    assert not await directory.request_stop("sealed")  # nobody listens: refused
    assert await directory.launcher() is None
    assert await directory.listen_for_stop("a launcher") is None
    assert await directory.launcher() == "a launcher"
    assert await directory.request_stop("sealed")
    assert await directory.listen_for_stop("a launcher") == "sealed"
    await directory.drop_stop()
    assert await directory.listen_for_stop("a launcher") is None
    assert await directory.request_stop("sealed")
    await directory.clear_stop()
    assert await directory.launcher() is None
    assert await directory.listen_for_stop("a launcher") is None


async def test_a_removed_replica_stays_away_despite_a_late_heartbeat(directory: Directory) -> None:
    await directory.register(record())
    await directory.remove("prefill#a")
    await directory.renew(record())
    found = await directory.census()
    assert (found.members, found.left) == ((), {"prefill#a"})
    await directory.register(record(generation=2))
    found = await directory.census()
    assert (found.members, found.left) == ((record(generation=2),), frozenset())


async def test_the_password_comes_from_the_environment(
    server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DirectoryConfig(url=server.url)
    async with redis.asyncio.Redis.from_url(server.url) as client:
        await client.config_set("requirepass", "open sesame")
        stranger = Directory.connect(config, SECRET)
        monkeypatch.setenv("TANDEM_REDIS_PASSWORD", "open sesame")
        friend = Directory.connect(config, SECRET)
        try:
            await friend.ping()
            with pytest.raises(Unavailable, match="authenticated"):
                await stranger.ping()
        finally:
            await client.config_set("requirepass", "")
            await friend.close()
            await stranger.close()
