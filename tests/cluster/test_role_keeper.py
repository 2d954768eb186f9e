"""Who lends replicas, and that a refusal ends nothing."""

from __future__ import annotations

import asyncio

import pytest

from cluster import role_keeper
from cluster.membership import ReplicaLoad, ReplicaRecord
from cluster.pools import Pools
from cluster.role_keeper import RoleKeeper
from cluster.scaling import ScalingConfig
from engine.errors import Unavailable

CONFIG = ScalingConfig(flip_roles=True, hold_s=0, rest_s=0)
PRESSED = ReplicaLoad(prompt_tokens_due=5000, prompt_tokens_per_s=1000.0)


class Members:
    def members(self, role=None):
        return [
            ReplicaRecord("p", "prefill", "h:1", 1, load=PRESSED),
            ReplicaRecord("d", "decode", "h:2", 1),
            ReplicaRecord("router-a", "router", "h:3", 1),
            ReplicaRecord("router-b", "router", "h:4", 1),
        ]


@pytest.mark.parametrize(("router", "asks"), [("router-a", True), ("router-b", False)])
async def test_one_router_lends_and_goes_on_after_a_refusal(monkeypatch, router, asks):
    asked, looked = [], asyncio.Event()

    async def refuse(record, role):
        asked.append((record.id, role))
        looked.set() if len(asked) > 1 else None
        raise Unavailable("gone")

    monkeypatch.setattr(role_keeper, "ask_role", refuse)
    monkeypatch.setattr(role_keeper, "_LOOK_S", 0.001)
    task = asyncio.create_task(RoleKeeper(CONFIG, router, Pools(Members())).run())
    if asks:
        await asyncio.wait_for(looked.wait(), 10)
    else:
        await asyncio.sleep(0.05)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert asked[:2] == ([("d", "both")] * 2 if asks else [])
