"""Reports from replicas to routers: at once, on change, and what their silence means."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.replica_record import ReplicaLoad, ReplicaRecord
from cluster.rpc import load_reports_server as report_server
from cluster.rpc.load_reports_client import LoadReports
from cluster.rpc.load_reports_server import LoadReporter
from engine.errors import Unavailable
from engine.loop_wakeup import LoopWakeup, PassEnds
from protos.report_pb2 import Report, ReportFrame
from protos.wire.streams import StreamServer
from tests.eventually import eventually
from tests.protos.wire.rig import MOST_BYTES, OTHER_SECRET, connector, listening, stream_to


class Frozen:
    """Reports once and then nothing, as a process that was stopped."""

    async def serve(self, stream):
        await stream.write(ReportFrame(report=Report(waiting=3)).SerializeToString())
        await stream.ended()


class Members:
    def __init__(self, *records):
        self.records = list(records)

    def members(self, role=None):
        return [record for record in self.records if role is None or record.serves(role)]


class Heard:
    """What a router is told."""

    def __init__(self):
        self.loads: list[ReplicaLoad] = []
        self.stale: list[str] = []
        self.reports = LoadReports(
            connector(), lambda name, load: self.loads.append(load), self.stale.append
        )


@pytest.fixture
async def serve():
    async with AsyncExitStack() as members:

        async def start(reporter, name="r0"):
            streams = StreamServer(reporter.serve, MOST_BYTES)
            wire = await members.enter_async_context(listening({"reports": streams.accept}))
            members.push_async_callback(streams.stop)
            load = ReplicaLoad(blocks_total=9, block_size=16, running=7)
            return ReplicaRecord(name, "decode", wire.address, 1, load=load)

        yield start


@pytest.fixture
async def heard():
    heard = Heard()
    yield heard
    await heard.reports.close()


async def test_a_router_hears_of_changes_without_asking(serve, heard):
    load = ReplicaLoad(waiting=1, prompt_tokens_due=50)
    record = await serve(LoadReporter(lambda: load, LoopWakeup()))
    pools = HealthyReplicas(Members(record), reports=heard.reports)
    assert pools.healthy("decode") == [record]
    heard.reports.follow([record])
    assert pools.stale() == {"r0"}
    await eventually(lambda: heard.loads)
    load = ReplicaLoad(waiting=4, prompt_tokens_due=90, streams=2, step_s=0.02, blocks_promised=6)
    await eventually(lambda: heard.loads[-1].waiting == 4)
    fresh = pools.healthy("decode")[0].load
    assert (fresh.prompt_tokens_due, fresh.streams, fresh.step_s, fresh.blocks_promised) == (
        90,
        2,
        0.02,
        6,
    )
    assert (fresh.blocks_total, fresh.block_size, fresh.running) == (9, 16, 0)
    assert pools.stale() == set()


async def test_a_frozen_replica_is_given_nothing(serve, heard):
    record = await serve(Frozen())
    lively = await serve(LoadReporter(ReplicaLoad, LoopWakeup()), "r1")
    pools = HealthyReplicas(Members(record, lively), reports=heard.reports)
    heard.reports.follow([record, lively])
    await eventually(lambda: any(load.waiting == 3 for load in heard.loads))
    assert pools.trusted(record)
    await eventually(lambda: not pools.trusted(record))
    # On a busy machine the other one may be late for once.
    await eventually(lambda: [one.id for one in pools.healthy("decode")] == ["r1"])
    assert heard.stale.count("r0") == 1
    # Its last report is no longer used.
    assert heard.reports.with_report(record).load.running == 7


async def test_a_replica_that_never_reports_is_not_silent(serve, heard):
    record, frozen = ReplicaRecord("r0", "decode", "127.0.0.1:1", 1), await serve(Frozen(), "r1")
    heard.reports.follow([record, frozen])
    await eventually(lambda: heard.reports.silent("r1"))
    assert not heard.reports.silent("r0") and heard.reports.stale() == {"r0", "r1"}


async def test_only_members_are_followed_and_a_new_life_anew(serve, heard):
    record = await serve(LoadReporter(ReplicaLoad, LoopWakeup()))
    router = ReplicaRecord("router-0", "router", "127.0.0.1:1", 1)
    heard.reports.follow([record, router])
    await eventually(lambda: heard.loads)
    assert heard.reports.stale() == set()
    reborn = await serve(Frozen())
    heard.reports.follow([ReplicaRecord("r0", "decode", reborn.address, 2)])
    await eventually(lambda: heard.loads[-1].waiting == 3)
    heard.reports.follow([])
    assert heard.reports.stale() == set() and not heard.reports.silent("r0")


class Looked:
    """A replica's state, and how often it was looked at."""

    def __init__(self):
        self.load = ReplicaLoad()
        self.times = 0

    def __call__(self):
        self.times += 1
        return self.load


class Noted(LoopWakeup):
    """A wake-up that notes for how long it is waited for."""

    def __init__(self):
        super().__init__()
        self.waits: list[float] = []

    async def stirred(self, timeout_s):
        self.waits.append(timeout_s)
        await super().stirred(timeout_s)


async def test_an_idle_replica_is_polled_seldom_and_changes_are_reported_at_once(
    serve, heard, monkeypatch
):
    monkeypatch.setattr(report_server, "UNCHANGED_S", 60.0)
    state, wake = Looked(), Noted()
    heard.reports.follow([await serve(LoadReporter(state, wake))])
    await eventually(lambda: heard.loads)
    # It waits for the wake-up alone, and does not look again before.
    await eventually(lambda: wake.waits == [60.0])
    state.load = ReplicaLoad(waiting=1)
    wake.set()
    await eventually(lambda: heard.loads[-1].waiting == 1)
    # While there is something to do, whatever changes is seen without being told of.
    state.load = ReplicaLoad(running=1, prompt_tokens_due=20)
    await eventually(lambda: heard.loads[-1].prompt_tokens_due == 20)


async def test_a_report_follows_the_end_of_a_pass_at_once_and_not_more_often(
    serve, heard, monkeypatch
):
    monkeypatch.setattr(report_server, "CHANGED_S", 60.0)
    state, passes = Looked(), PassEnds()
    state.load = ReplicaLoad(running=1, prompt_tokens_due=4096)
    heard.reports.follow([await serve(LoadReporter(state, LoopWakeup(), passes))])
    await eventually(lambda: heard.loads)
    for due in (2048, 1024):
        state.load = replace(state.load, prompt_tokens_due=due, pass_s=0.0095, shared_tokens=2048)
        passes.tell()
        await eventually(lambda due=due: heard.loads[-1].prompt_tokens_due == due)
    assert (heard.loads[-1].pass_s, heard.loads[-1].shared_tokens) == (0.0095, 2048)
    monkeypatch.setattr(report_server, "LEAST_S", 60.0)
    passes.tell()
    await eventually(lambda: heard.loads[-1].prompt_tokens_due == 1024)
    state.load = replace(state.load, prompt_tokens_due=512)
    passes.tell()
    assert sum(load.prompt_tokens_due == 512 for load in heard.loads) <= 1


async def test_what_comes_while_a_report_is_written_is_not_overlooked(serve, heard, monkeypatch):
    monkeypatch.setattr(report_server, "UNCHANGED_S", 60.0)
    state = Looked()

    def begun_meanwhile():
        """At rest at the first look; nobody waits yet when that is over."""
        load, state.load = state(), ReplicaLoad(streams=1)
        return load

    heard.reports.follow([await serve(LoadReporter(begun_meanwhile, LoopWakeup()))])
    await eventually(lambda: heard.loads and heard.loads[-1].streams == 1)
    assert heard.loads[0].streams == 0


async def test_a_stranger_hears_no_report(serve):
    record = await serve(LoadReporter(ReplicaLoad))
    with pytest.raises(Unavailable):
        async with stream_to(record.address, "reports", OTHER_SECRET):
            pass


async def test_a_member_that_says_something_hears_no_more(serve):
    record = await serve(LoadReporter(ReplicaLoad))
    async with stream_to(record.address, "reports") as stream:
        assert ReportFrame.FromString(await stream.read()).HasField("report")
        await stream.write(b"a request")
        await asyncio.wait_for(stream.ended(), 5)


@pytest.mark.parametrize("said", [b"\xff\xff\xff", bytes(100_000)])
async def test_reports_that_cannot_be_read_are_asked_for_again(serve, heard, said):
    class Garbles:
        times = 0

        async def serve(self, stream):
            Garbles.times += 1
            await stream.write(said)
            await stream.ended()

    heard.reports.follow([await serve(Garbles())])
    await eventually(lambda: Garbles.times > 1)
    assert not heard.loads
