"""Which router keeps the pools, and what it leaves in the directory."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from cluster.autoscaling import runner
from cluster.autoscaling.load_signals import LoadLimits
from cluster.autoscaling.runner import AutoscalingRunner
from cluster.config.autoscaling import PoolBounds, ScalingConfig
from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.replica_record import ReplicaLoad, ReplicaRecord
from engine.errors import Unavailable
from tests.protos.wire.rig import connector

FLIPS = ScalingConfig(flip_roles=True, pressure_hold_s=0, rest_s=0)
GROWS = ScalingConfig(prefill=PoolBounds(1, 3), pressure_hold_s=0, rest_s=0)
PRESSED = ReplicaLoad(prompt_tokens_due=5000, prompt_tokens_per_s=1000.0)


class Members:
    """A copy of the directory, which counts its readings."""

    def __init__(self):
        self.readings = 0
        self.read = asyncio.Event()

    def members(self, role=None):
        self.readings += 1
        if self.readings > 20:
            self.read.set()
        return [
            ReplicaRecord("p", "prefill", "h:1", 1, load=PRESSED, home="prefill"),
            ReplicaRecord("d", "decode", "h:2", 1, home="decode"),
            ReplicaRecord("router-a", "router", "h:3", 1),
            ReplicaRecord("router-b", "router", "h:4", 1),
        ]


class Board:
    """A directory's counts."""

    def __init__(self, desired=None, broken=False):
        self.counts = dict(desired or {})
        self.broken = broken
        self.told = asyncio.Event()

    async def desired(self):
        return dict(self.counts)

    async def set_desired(self, desired):
        if self.broken:
            self.broken = False
            raise Unavailable("gone")
        self.counts = dict(desired)
        self.told.set()


async def keep(config, board, until, router="router-a", members=None, identity=None):
    pools = HealthyReplicas(members or Members(), identity=identity)
    scaler = AutoscalingRunner(
        config, LoadLimits(), router, pools, board, connector(), poll_s=0.001
    )
    task = asyncio.create_task(scaler.run())
    await until
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(("router", "asks"), [("router-a", True), ("router-b", False)])
async def test_one_router_flips_roles_and_goes_on_after_a_refusal(monkeypatch, router, asks):
    asked, twice = [], asyncio.Event()

    async def refuse(connector, record, role):
        asked.append((record.id, role))
        twice.set() if len(asked) > 1 else None
        raise Unavailable("gone")

    monkeypatch.setattr(runner, "request_role", refuse)
    members = Members()
    until = asyncio.wait_for((twice if asks else members.read).wait(), 10)
    await keep(FLIPS, Board(), until, router, members)
    assert asked[:2] == ([("d", "both")] * 2 if asks else [])


async def test_decisions_are_published_and_logged(caplog):
    board = Board(broken=True)
    with caplog.at_level(logging.INFO, logger="cluster.autoscaling.runner"):
        await keep(GROWS, board, asyncio.wait_for(board.told.wait(), 10))
    # One more, and then none before that one is there.
    assert board.counts == {"prefill": 2}
    (line,) = [record for record in caplog.records if record.message == "pool resized"]
    assert (line.pool, line.before, line.replicas) == ("prefill", 1, 2)
    assert "pressure" in line.reason


async def test_another_router_goes_on_where_the_last_one_stopped():
    board = Board({"prefill": 3})
    await keep(GROWS, board, asyncio.wait_for(board.told.wait(), 10))
    assert board.counts == {"prefill": 3}


async def test_the_routers_that_do_not_keep_the_pools_say_nothing():
    board = Board()
    members = Members()
    await keep(GROWS, board, asyncio.wait_for(members.read.wait(), 10), "router-b", members)
    assert board.counts == {}


async def test_a_router_that_leaves_keeps_the_pools_no_more():
    """Its last streams may take long; pools go on being woken meanwhile."""

    class Leaving(Members):
        def members(self, role=None):
            return [replace(r, leaving=r.id == "router-a") for r in super().members(role)]

    board = Board()
    told = asyncio.wait_for(board.told.wait(), 5)
    await keep(GROWS, board, told, "router-b", Leaving())
    assert board.counts == {"prefill": 2}


async def test_what_waits_in_a_router_that_leaves_wakes_a_pool_of_its_weights():
    for identity, woken in (("", 1), ("other", 0)):
        leaving = ReplicaRecord(
            "router-a",
            "router",
            "h:3",
            1,
            identity,
            load=ReplicaLoad(waiting=1, unserved_prefill=1),
            leaving=True,
        )

        class Asleep:
            def members(self, role=None, leaving=leaving):
                return [leaving, ReplicaRecord("router-b", "router", "h:4", 1)]

        board, config = Board({"prefill": 0}), ScalingConfig(prefill=PoolBounds(0, 3))
        told = asyncio.wait_for(board.told.wait(), 5)
        await keep(config, board, told, "router-b", Asleep(), "")
        assert board.counts == {"prefill": woken}
