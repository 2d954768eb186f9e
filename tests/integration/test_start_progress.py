"""A replica that loads: what it says of its start, and where an operator reads it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.cli.status_table import as_data, as_table
from cluster.cli.top_view import sections_of
from cluster.client.admin_client import ListedRequests, fetch_status
from cluster.replica import start_report
from cluster.replica.replica import Replica
from cluster.replica.start_report import StartReport
from engine.errors import UnsupportedModel
from engine.safetensors_header import read_header
from engine.startup_timer import StartupTimer
from tests.eventually import eventually
from tests.integration.local import HOST, OPERATOR_KEY, cluster


def bytes_of_weights(folder: Path) -> int:
    total = 0
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            total += path.stat().st_size - read_header(file, path)[2]
    return total


class GatedTimer(StartupTimer):
    """Stops a replica's reading once half of the bytes are read, until it may go on."""

    def __init__(self):
        super().__init__("import")
        self.reached, self.opened = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def advance(self, count):
        super().advance(count)
        if self.stage.total / 2 <= self.stage.done < self.stage.total:
            self._loop.call_soon_threadsafe(self.reached.set)
            asyncio.run_coroutine_threadsafe(self.opened.wait(), self._loop).result(60)


async def start(config, local, timer):
    """A further decode replica, as a Serve replica starts it."""
    async with StartReport(timer, local.directory, "decode-9", "decode"):
        return await Replica.start(config, "decode", "decode-9", HOST, local.directory, timer=timer)


async def test_a_replica_that_loads_is_named_with_its_bytes(config, model_folder, monkeypatch):
    monkeypatch.setattr(start_report, "EVERY_S", 0.01)
    total = bytes_of_weights(model_folder)
    async with cluster(config) as local:
        timer = GatedTimer()
        loading = asyncio.create_task(start(config, local, timer))
        await timer.reached.wait()

        async def seen():
            status = await fetch_status(local.router.grpc_address, OPERATOR_KEY)
            return status if any(one.done >= total / 2 for one in status.starting) else None

        status = await eventually(seen)
        (told,) = status.starting
        assert (told.id, told.role, told.stage, told.unit) == (
            *("decode-9", "decode", "weights", "bytes"),
        )
        assert total / 2 <= told.done < told.total == total
        assert "starting: decode-9: weights, " in as_table(status)
        (shown,) = as_data(status)["starting"]
        assert shown["total"] == total and shown["left_s"] is None
        nothing = ListedRequests([], [], {}, [])
        tables = {one.title: one.rows for one in sections_of(status, nothing, 60.0)}
        row = next(row for row in tables["replicas"] if row[1] == "decode-9")
        assert row[2].startswith("starts: weights, ")
        timer.opened.set()
        replica = await loading
        (said,) = await local.directory.starting.all()
        assert (said.stage, said.weights_bytes) == ("ready", total)
        status = await fetch_status(local.router.grpc_address, OPERATOR_KEY)
        assert not status.starting
        await replica.stop()


async def test_a_start_that_fails_is_named_no_more(config, model_folder, tmp_path):
    for path in model_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    broken = replace(config, model=replace(config.model, path=str(tmp_path)))
    async with cluster(config) as local:
        with pytest.raises(UnsupportedModel, match=r"model\.safetensors is cut short"):
            await start(broken, local, StartupTimer("import"))
        assert await local.directory.starting.all() == []
