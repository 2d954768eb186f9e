"""Why TTFT rose, with causes made on a real cluster: console and terminal name them alike."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import asynccontextmanager

import httpx
import pytest

from bench.faults.cluster_faults import FAULTS
from bench.faults.faulty_cluster import served
from tests.eventually import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
CALM_REQUESTS, CALM_S, NAMED_S = 100, 180, 240


@asynccontextmanager
async def faulty(name, folder, monkeypatch):
    """A cluster that was calm, and then has the fault; and the replica that the fault strikes."""
    with served(FAULTS[name], folder) as cluster:
        monkeypatch.setenv("TANDEM_OPERATOR_KEY", cluster.operator_key)
        async with cluster.calm():
            await eventually(lambda: cluster.traffic.ended.total() >= CALM_REQUESTS, CALM_S, 0.5)
            assert await marks(cluster) == {}, "of a calm cluster"
            async with cluster.fault() as struck:
                yield cluster, struck


async def on_the_page(cluster):
    """The rises that the console's feed begins with or tells next."""
    url = f"http://127.0.0.1:{cluster.http_port}/console/feed"
    headers = {"Authorization": f"Bearer {cluster.operator_key}"}
    async with (
        httpx.AsyncClient(timeout=60, headers=headers) as client,
        client.stream("GET", url) as answer,
    ):
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data:") and "rises" in (document := json.loads(line[5:])):
                return document["rises"]
    raise AssertionError("the feed ended")


async def in_the_terminal(cluster):
    """What a piped `tandem top` prints, as one line."""
    return " ".join((await printed(cluster, "top")).split())


async def marks(cluster):
    """What `tandem status` says of each slow replica."""
    replicas = json.loads(await printed(cluster, "status", "--json"))["replicas"]
    return {one["id"]: one["slow"] for one in replicas if one["slow"]}


async def printed(cluster, *command):
    given = [sys.executable, "-m", "cluster.cli.main", *command, "--address", cluster.grpc]
    run = await asyncio.to_thread(
        subprocess.run, given, capture_output=True, text=True, timeout=60, check=True
    )
    return run.stdout


async def named(cluster, cause, sentence):
    """Wait until the first rise has that cause on the page, and `tandem top` says the sentence."""
    seen = []

    async def both():
        rises = await on_the_page(cluster)
        text = await in_the_terminal(cluster)
        seen[:] = [[one["words"] for one in rises], text]
        found = [one["cause"] for one in rises]
        on_page = bool(found) and all(found[0][name] == value for name, value in cause.items())
        return on_page and sentence in rises[0]["words"] and sentence in text

    try:
        await eventually(both, NAMED_S, 1.0)
    except TimeoutError:
        pytest.fail(f"not named: {seen}")


async def test_a_slow_prefill_replica_is_named(tmp_path, monkeypatch):
    async with faulty("slow-prefill", tmp_path, monkeypatch) as (cluster, struck):
        cause = {"pool": "prefill", "replica": struck, "tenant": ""}
        await named(cluster, cause, f"One prefill replica was slow: {struck} (")

        # The router avoids it, and has seen enough of it.
        async def marked():
            return f"{struck} slow: " in await in_the_terminal(cluster)

        await eventually(marked, NAMED_S, 1.0)


async def test_the_tenant_of_a_burst_is_named(tmp_path, monkeypatch):
    async with faulty("tenant-burst", tmp_path, monkeypatch) as (cluster, _):
        cause = {"pool": "prefill", "replica": "", "tenant": "initech"}
        await named(cluster, cause, "One tenant sent more: initech (")


async def test_a_kv_pool_that_is_nearly_full_is_named(tmp_path, monkeypatch):
    async with faulty("kv-full", tmp_path, monkeypatch) as (cluster, _):
        cause = {"pool": "decode", "replica": "", "reason": "kv_blocks"}
        await named(cluster, cause, "The decode pool is nearly full: its KV blocks are taken")
