"""The lease heartbeat and the directory watch, through outages of Redis."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio

from cluster.config.deployment import DirectoryConfig
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.discovery.heartbeat import DirectoryWatch, LeaseHeartbeat, join_directory, pause_s
from cluster.discovery.redis_directory import Directory
from cluster.replica_record import Change, ReplicaLoad, ReplicaRecord
from engine.errors import Unavailable
from tests.cluster.discovery.frozen import Frozen
from tests.cluster.discovery.members import SECRET, record
from tests.eventually import eventually


@pytest.fixture
def lease_s() -> float:
    """Some beats, so that a moment in which the machine is busy is no outage."""
    return 1.2


class Beats:
    """The load of a replica, which says how often it was asked for: once for each heartbeat."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> ReplicaLoad:
        self.count += 1
        return ReplicaLoad(waiting=self.count)

    async def more(self, beats: int) -> None:
        """Wait until so many more heartbeats were begun."""
        enough = self.count + beats
        await eventually(lambda: self.count >= enough)


def missed_deadline(call: Callable[..., Awaitable[None]]) -> tuple[Any, asyncio.Event]:
    """The same call, and an event that is set when it first fails."""
    missed = asyncio.Event()

    async def watched(*arguments: object) -> None:
        try:
            await call(*arguments)
        except Unavailable:
            missed.set()
            raise

    return watched, missed


async def test_heartbeats_keep_the_lease_and_carry_the_load(directory: Directory) -> None:
    beats = Beats()
    heart = LeaseHeartbeat(directory, record(), beats, interval_s=0.1)
    heart.start()
    await beats.more(20)  # more than a lease
    (first,) = await eventually(directory.members)
    await heart.set_role("both")
    await beats.more(2)
    (second,) = await eventually(directory.members)
    assert second.load.waiting > first.load.waiting > 1
    assert (first.role, second.role) == ("prefill", "both")
    await heart.stop()
    await heart.stop()
    assert await directory.members() == []


async def test_a_heartbeat_under_way_never_undoes_a_newer_role(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older heartbeat still connects when the newer one is due."""
    connecting, connected, stored = asyncio.Event(), asyncio.Event(), list[str]()

    async def slow_at_first(renewed: ReplicaRecord) -> None:
        if not connecting.is_set():
            connecting.set()
            await connected.wait()
        stored.append(renewed.role)

    monkeypatch.setattr(directory, "renew", slow_at_first)
    heart = LeaseHeartbeat(directory, record(), ReplicaLoad, interval_s=60)
    heart.start()
    await connecting.wait()
    newer = asyncio.create_task(heart.set_role("both"))
    for _ in range(20):
        await asyncio.sleep(0)
    connected.set()
    await newer
    await eventually(lambda: len(stored) == 2)
    assert stored == ["prefill", "both"]
    await heart.stop(remove=False)


async def test_a_new_role_outlasts_a_missed_deadline(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = list[str]()

    async def miss_one(renewed: ReplicaRecord) -> None:
        stored.append(renewed.role)
        if len(stored) == 1:
            raise Unavailable("no answer within 1 s")

    monkeypatch.setattr(directory, "renew", miss_one)
    heart = LeaseHeartbeat(directory, record(), ReplicaLoad)
    await heart.set_role("both")
    assert stored == ["both", "both"] and heart.connected


def test_one_lost_heartbeat_costs_no_lease_and_an_outage_few_heartbeats() -> None:
    config = DirectoryConfig()
    pauses_s = [pause_s(config.heartbeat_s, failures, config.lease_s) for failures in range(6)]
    assert pauses_s == [1.0, 0.5, 1.0, 2.0, 3.0, 3.0]
    lost_s = config.heartbeat_s  # a heartbeat that is lost takes so long at most
    assert pauses_s[0] + lost_s + pauses_s[1] < config.lease_s


async def test_an_outage_is_survived_and_logged_once(
    directory: Directory, server: EmbeddedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    changes: list[Change] = []
    beats = Beats()
    heart = LeaseHeartbeat(directory, record(), beats, interval_s=0.1)
    watch = DirectoryWatch(directory, interval_s=0.05, on_change=changes.append)
    heart.start()
    await watch.start()
    await eventually(lambda: bool(watch.members("prefill")))
    with Frozen(server):
        await eventually(lambda: not heart.connected and not watch.connected)
        await beats.more(5)  # more than two leases, as the pauses grow
        assert [member.id for member in watch.members("prefill")] == ["prefill#a"]
    await eventually(lambda: heart.connected and watch.connected)
    await beats.more(8)
    assert [member.id for member in watch.members()] == ["prefill#a"]
    assert [member.id for member in await eventually(directory.members)] == ["prefill#a"]
    assert len(changes) == 1
    messages = [
        entry.message for entry in caplog.records if entry.name == "cluster.discovery.heartbeat"
    ]
    for name in ("heartbeat of prefill#a", "watch"):
        of_one = [message for message in messages if message.startswith(name)]
        # A slow host may lose the directory again, so there may be more pairs of lines than one.
        pair = [f"{name}: directory lost", f"{name}: directory is back"]
        assert of_one == pair * (len(of_one) // 2) and of_one
    await heart.stop()
    await watch.stop()


async def test_a_replica_that_dies_leaves_the_watch_when_its_lease_ends(
    directory: Directory,
) -> None:
    changes: list[Change] = []
    watch = DirectoryWatch(directory, interval_s=0.05, on_change=changes.append)
    await watch.start()
    heart = LeaseHeartbeat(directory, record(), ReplicaLoad, interval_s=0.1)
    heart.start()
    await eventually(lambda: watch.get("prefill#a") is not None)
    await heart.stop(remove=False)
    await eventually(lambda: watch.members() == [])
    assert [bool(change.lost) for change in changes] == [False, True]
    await watch.stop()


async def test_a_listener_that_fails_does_not_stop_the_watch(
    directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(change: Change) -> None:
        raise RuntimeError("no")

    watch = DirectoryWatch(directory, interval_s=0.02, on_change=fail)
    await watch.start()
    await directory.register(record())
    await eventually(lambda: bool(watch.members()))
    assert "listener" in caplog.text
    await watch.stop()
    await watch.stop()
    assert watch.members() == [record()]


async def test_a_watch_may_start_before_the_directory_answers() -> None:
    nowhere = Directory.connect(DirectoryConfig(url="unix:///nonexistent/redis.sock"), SECRET)
    watch = DirectoryWatch(nowhere)
    await watch.start()
    assert watch.members() == []
    assert not watch.connected
    heart = LeaseHeartbeat(nowhere, record(), ReplicaLoad)
    heart.start()
    await heart.stop()
    await watch.stop()
    await nowhere.close()


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 13])
async def test_a_heartbeat_stops_also_in_mid_call(directory: Directory, steps: int) -> None:
    heart = LeaseHeartbeat(directory, record(), ReplicaLoad)
    heart.start()
    for _ in range(steps):
        await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await heart.stop()
    assert not heart.running


async def test_a_replica_that_leaves_after_an_outage_is_gone_at_once(
    directory: Directory, server: EmbeddedRedis
) -> None:
    hearts = [LeaseHeartbeat(directory, record(name), ReplicaLoad, 0.1) for name in ("a", "b")]
    patient = Directory.connect(DirectoryConfig(url=server.url, lease_s=30), SECRET)
    watch = DirectoryWatch(patient, interval_s=0.05)
    for heart in hearts:
        heart.start()
    await watch.start()
    await eventually(lambda: len(watch.members()) == 2)
    with Frozen(server):
        await eventually(lambda: not watch.connected)
    await eventually(lambda: watch.connected)
    await hearts[1].stop()
    await eventually(lambda: [one.id for one in watch.members()] == ["a"])
    await hearts[0].stop()
    await watch.stop()
    await patient.close()


async def test_a_join_and_a_leave_outlast_a_missed_deadline(
    directory: Directory, server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    heart = LeaseHeartbeat(directory, record(), ReplicaLoad, interval_s=0.1)
    register, join_missed = missed_deadline(directory.register)
    remove, leave_missed = missed_deadline(directory.remove)
    monkeypatch.setattr(directory, "register", register)
    monkeypatch.setattr(directory, "remove", remove)
    with Frozen(server):
        joining = asyncio.create_task(join_directory(directory, record()))
        await asyncio.wait_for(join_missed.wait(), 30)
        assert not joining.done()
    await asyncio.wait_for(joining, 30)
    heart.start()
    with Frozen(server):
        await eventually(lambda: not heart.connected)
        leaving = asyncio.create_task(heart.stop())
        await asyncio.wait_for(leave_missed.wait(), 30)
    await asyncio.wait_for(leaving, 30)
    assert "prefill#a" in (await directory.census()).left


async def test_data_lost_between_two_readings_keep_all_members(
    directory: Directory, server: EmbeddedRedis
) -> None:
    changes: list[Change] = []
    watch = DirectoryWatch(directory, on_change=changes.append)
    for name in ("a", "b"):
        await directory.register(record(name))
    await watch.refresh()
    async with redis.asyncio.Redis.from_url(server.url) as client:
        await client.flushall()
    await directory.renew(record("a"))
    assert await watch.refresh()
    assert [one.id for one in watch.members()] == ["a", "b"]
    await directory.renew(record("b"))
    assert await watch.refresh()
    assert [len(change.joined) for change in changes] == [2]
    assert not any(change.lost for change in changes)
