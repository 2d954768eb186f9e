"""The console over a real router: what it shows, what an operator may do, and how it ends."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest
import yaml

from cluster.tenants.hashed_keys import hash_of
from engine.errors import InvalidRequest, TandemError
from tandem_client import Client
from tests.eventually import eventually
from tests.integration.local import OPERATOR_KEY, cluster, slow_steps

OPERATOR = {"authorization": f"Bearer {OPERATOR_KEY}"}
LONG = {"max_tokens": 1500, "ignore_eos": True, "temperature": 0}


@pytest.fixture
def keyed(config, tmp_path):
    file = tmp_path / "keys.yaml"
    file.write_text(yaml.safe_dump({"tenants": {"acme": [hash_of("t")]}}))
    kv = replace(config.kv, warm_prefixes=("a text of the operator",))
    return replace(config, kv=kv, router=replace(config.router, api_keys=str(file)))


@asynccontextmanager
async def asking(local, headers=OPERATOR):
    url = f"http://{local.router.http_address}"
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=20) as client:
        yield client


class Feed:
    """The feed, merged as the page merges it."""

    def __init__(self, lines):
        self._lines = lines
        self.state: dict = {}
        self.rows: list[dict] = []

    async def event(self):
        name, document = "", {}
        async for line in self._lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                document = json.loads(line.removeprefix("data: "))
            elif not line:
                break
        self.rows += document.get("rows", ())
        merged = {
            part: self.state.get(part, {}) | document.get(part, {})
            for part in ("replicas", "series")
        }
        self.state |= document | merged
        return name, document

    async def until(self, found, timeout_s=20):
        async with asyncio.timeout(timeout_s):
            while not found(self):
                await self.event()


@asynccontextmanager
async def looking(client):
    async with client.stream("GET", "/console/feed") as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        feed = Feed(answer.aiter_lines())
        assert (await feed.event())[0] == "whole"
        yield feed


async def test_a_request_is_seen_while_it_runs_and_when_it_has_ended(keyed):
    async with cluster(keyed) as local, asking(local) as client, looking(client) as feed:
        slow_steps(local.decode, 0.003)  # it runs for seconds, and the feed tells twice a second
        await feed.until(lambda one: len(one.state["replicas"]) == 3)
        assert set(feed.state["replicas"]) == {"prefill-0", "decode-0", "router-0"}
        assert feed.state["cluster"]["launched"] is False
        async with Client(local.router.grpc_address, api_key="t") as tenant:
            stream = asyncio.create_task(tenant.complete([1] * 300, request_id="r-1", **LONG))
            await feed.until(lambda one: one.state["running"]["rows"])
            seen = feed.state["running"]["rows"][0]
            assert (seen["request_id"], seen["tenant"]) == ("r-1", "acme")
            assert feed.state["tenants"]["acme"]["caps"]["concurrent"]["cap"] == 1024
            await feed.until(lambda one: one.state["links"])
            assert (
                feed.state["links"][0] | {"from": "prefill-0", "to": "decode-0"}
                == (feed.state["links"][0])
            )
            whole = await stream
            await feed.until(lambda one: one.rows)
        row = feed.rows[0]
        summary = whole.summary.choices[0]
        assert row["request_id"] == "r-1"
        assert row["ttft_s"] == pytest.approx(summary.ttft_s, abs=1e-3)
        assert row["stages"][-1][2] == pytest.approx(row["ttlt_s"], rel=0.01)
        points = [p for step in feed.state["series"].values() for p in step.values()]
        assert sum(point["ended"] for point in points) == 1
        found = (await client.get("/console/request?id=r-1")).json()
        assert found["words"]["0"]


async def test_an_operator_stops_a_request(keyed):
    async with cluster(keyed) as local, asking(local) as client:
        slow_steps(local.decode, 0.01)
        async with Client(local.router.grpc_address, api_key="t") as tenant:
            stream = asyncio.create_task(tenant.complete([1] * 20, request_id="r-1", **LONG))
            await eventually(lambda: local.router.router.in_flight.find("acme", "r-1"))
            other = await client.post("/console/stop?id=r-1&tenant=beta")
            assert other.status_code == 404
            assert (await client.post("/console/stop?id=r-1&tenant=acme")).status_code == 200
            with pytest.raises(TandemError, match="an operator stopped the request"):
                await stream
        await local.idle()


@pytest.mark.parametrize("how", ["drain", "kill"])
async def test_replicas_are_ended_only_in_a_cluster_of_tandem_serve(keyed, how, monkeypatch):
    asked = []
    async with cluster(keyed) as local, asking(local) as client:
        path = f"/console/{how}?replica=decode-0"
        refused = await client.post(path)
        assert refused.status_code == 503
        assert "was not started by `tandem serve`" in refused.json()["error"]["message"]
        await local.directory.listen_for_stop("a launcher")
        assert (await client.post(f"/console/{how}?replica=router-0")).status_code == 404
        ended = "cluster.replica.end_signal.os.kill"
        monkeypatch.setattr(ended, lambda pid, number: asked.append(number.name))
        assert (await client.post(path)).status_code == 200
        await eventually(lambda: asked)
        assert asked == [{"drain": "SIGTERM", "kill": "SIGKILL"}[how]]
        with pytest.raises(InvalidRequest, match="this is prefill-0"):
            local.prefill[0].end_process("decode-0", True)
        await local.directory.clear_stop()


async def test_the_configuration_has_no_secret_and_no_text(keyed):
    async with cluster(keyed) as local, asking(local) as client:
        shown = (await client.get("/console/configuration")).text
        assert "a text of the operator" not in shown
        assert keyed.directory.url not in shown
        assert keyed.security.secret_file not in shown


async def test_pages_do_not_delay_the_end_of_a_router(config):
    async with cluster(config) as local, asking(local) as client, looking(client) as feed:
        began_s = time.monotonic()
        ending = asyncio.create_task(local.router.drain(30))
        name = ""
        while name != "ended":
            name, document = await feed.event()
        assert document["reason"] == "the router ends"
        await ending
        assert time.monotonic() - began_s < 10
