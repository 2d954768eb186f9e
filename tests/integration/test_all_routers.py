"""Two real routers: an operator sees, explains and stops at one what runs in the other."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from operator import sub

import httpx
import pytest

from bench.failover.member import SECRET
from cluster.client.admin_client import fetch_requests, fetch_status, list_requests
from cluster.config.security import SecurityConfig
from cluster.discovery.redis_directory import Directory
from cluster.replica_record import ReplicaRecord
from cluster.router.server import RouterServer
from cluster.tenants.hashed_keys import hash_of
from engine.errors import PermissionDenied, TandemError, Unauthenticated
from protos.peer_pb2 import PeerQuestion, StopQuestion
from protos.router_pb2 import ListRequestsRequest
from protos.wire.secret import made
from tandem_client import Client
from tests.eventually import eventually
from tests.integration.local import OPERATOR_KEY, cluster, slow_steps
from tests.integration.test_console import LONG, OPERATOR, asking, keyed, looking
from tests.integration.test_frozen import member_process

__all__ = ["keyed"]
SHORT = {"max_tokens": 4, "ignore_eos": True}
# The delay of each step, so that a request of `LONG` does not end early.
STEP_S = 0.02
# The longest time between two events, and until a frozen router is named, on a busy machine.
MOST_TICK_S, NAMED_S = 6.0, 12.0


@asynccontextmanager
async def two_routers(config):
    """A cluster with a second router, which sees the first one and is seen by it."""
    async with cluster(config) as local:
        other = await RouterServer.start(
            config, "router-1", local.directory, operators=[hash_of(OPERATOR_KEY)]
        )
        try:
            for one in (local.router, other):
                await eventually(lambda one=one: len(one.pools.members()) == 4)
            yield local, other
        finally:
            await other.stop()


@asynccontextmanager
async def frozen(process, local):
    """The process of the other router is frozen while the block runs, and keeps its lease.

    Else it would be luck on a busy machine whether it is asked before its lease ends.
    """
    (record,) = local.router.peers.others()
    longer = replace(local.config.directory, lease_s=60.0)
    patient = Directory.of(replace(local.config, directory=longer))
    process.send_signal(signal.SIGSTOP)
    try:
        await patient.renew(record)
        yield
    finally:
        process.send_signal(signal.SIGCONT)
        await patient.remove(record.id)
        await patient.close()


def at(router, headers=OPERATOR):
    """A client of that router's console."""
    url = f"http://{router.http_address}"
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=20)


async def rows_at(router, **wanted):
    request = ListRequestsRequest(**wanted)
    return await list_requests(router.grpc_address, request, OPERATOR_KEY)


async def test_a_request_of_another_router_is_seen_and_stopped(config):
    async with two_routers(config) as (local, other), at(other) as client, looking(client) as feed:
        slow_steps(local.decode, STEP_S)
        stream = asyncio.create_task(local.client.complete([1] * 20, request_id="r-1", **LONG))
        await feed.until(lambda one: one.state["running"]["rows"])
        (seen,) = feed.state["running"]["rows"]
        assert (seen["request_id"], seen["router"]) == ("r-1", "router-0")
        assert feed.state["running"]["count"] == 1
        assert feed.state["routers"] == {"router-0": None}
        missed = await client.post("/console/stop?id=r-2&tenant=default")
        assert missed.status_code == 404
        assert (await client.post("/console/stop?id=r-1&tenant=default")).status_code == 200
        with pytest.raises(TandemError, match="an operator stopped the request"):
            await stream
        await feed.until(lambda one: one.rows)
        assert feed.rows[0] | {"request_id": "r-1", "router": "router-0"} == feed.rows[0]
        await feed.until(lambda one: one.state["running"]["count"] == 0)
        await local.idle()


async def test_charts_tenants_and_links_count_the_requests_of_all_routers_once(config):
    async with two_routers(config) as (local, other), at(other) as client:
        async with Client(other.grpc_address) as there:
            for number in range(3):
                await local.client.complete([1] * 40, request_id=f"a-{number}", max_tokens=4)
                await there.complete([1] * 40, request_id=f"b-{number}", max_tokens=4)
        async with looking(client) as feed:
            await feed.until(lambda one: first_tokens(one) >= 6)
            assert feed.state["links"] == [], "transfers of before count as of now"
            assert {row["request_id"][0] for row in feed.rows} == {"a", "b"}
            served = feed.state["served"]["default"]
            assert served["tokens"] >= 6 * 41 and (served["requests"], served["refused"]) == (6, 0)
            await local.client.complete([1] * 300, request_id="late", tenant="acme", **SHORT)
            await feed.until(lambda one: one.state["links"])
            await feed.until(lambda one: ended(one) >= 7)
            assert feed.state["links"][0]["from"] == "prefill-0"
            assert ended(feed) == first_tokens(feed) == 7
        # Another page begins with the whole, and nothing counts twice.
        async with looking(client) as feed:
            await feed.until(lambda one: ended(one) >= 7)
            for _ in range(3):
                await feed.event()
            assert ended(feed) == first_tokens(feed) == 7
            assert len({row["request_id"] for row in feed.rows}) == len(feed.rows) == 7


async def test_top_and_console_of_any_router_have_the_same_figures(config):
    wanted = ListRequestsRequest(figures=True)
    async with two_routers(config) as (local, other), at(other) as client:
        async with Client(other.grpc_address) as there:
            for number in range(3):
                await local.client.complete([1] * 40, request_id=f"a-{number}", **SHORT)
                await there.complete([1] * 40, request_id=f"b-{number}", **SHORT)
        async with looking(client) as feed:
            await feed.until(lambda one: ended(one) >= 6)
            for router in (local.router, other):
                found = await fetch_requests([router.grpc_address], wanted, OPERATOR_KEY)
                counts = {one.tenant: (one.tokens, one.requests) for one in found.tenants}
                served = feed.state["served"].items()
                assert counts == {name: (one["tokens"], one["requests"]) for name, one in served}
                assert counts == {"default": (6 * 44, 6)}
                # The routers give each other parts of the cap at any time.
                assert re.fullmatch(r"0 of [\d,]+ running", found.tenants[0].cap)
                # What a replica reports last may reach the two at different times.
                async with asyncio.timeout(30):
                    while (times := await status_times(router)) != shown_times(feed):
                        await feed.event()
                assert times["prefill-0"][0] > 0 < times["decode-0"][1]


async def status_times(router):
    status = await fetch_status(router.grpc_address, OPERATOR_KEY)
    return {one.id: (one.prefill_s, one.step_s, one.slow) for one in status.replicas}


def shown_times(feed):
    return {
        name: (one["prefill_s"] or 0.0, one["step_s"] or 0.0, one["slow"])
        for name, one in feed.state["replicas"].items()
        if one["promised"] == 0
    }


def points(feed):
    return [point for step in feed.state["series"].values() for point in step.values()]


def first_tokens(feed):
    return sum(point["first_tokens"] for point in points(feed))


def ended(feed):
    return sum(point["ended"] for point in points(feed))


async def test_ended_requests_of_another_router_are_listed_and_explained(config):
    async with two_routers(config) as (local, other), at(other) as client:
        await local.client.complete([1] * 30, request_id="there", max_tokens=4)
        async with Client(other.grpc_address) as beside:
            await beside.complete([1] * 30, request_id="here", max_tokens=4)
        rows = await rows_at(other)
        assert [(row["request_id"], row["router"]) for row in rows] == [
            ("here", "router-1"),
            ("there", "router-0"),
        ]
        assert [row["request_id"] for row in await rows_at(other, limit=1)] == ["here"]
        slowest = await rows_at(other, slowest=True)
        assert [row["ttft_s"] for row in slowest] == sorted(
            (row["ttft_s"] for row in rows), reverse=True
        )
        wanted = ListRequestsRequest(limit=1, figures=True)
        # Asked twice, each request counts once.
        addresses = 2 * [other.grpc_address]
        (figures,) = (await fetch_requests(addresses, wanted, OPERATOR_KEY)).figures
        assert (figures.requests, len(figures.ttft_s)) == (2, 2)
        (row,) = await rows_at(other, request_id="there")
        assert row["router"] == "router-0" and row["choices"][0]["stages"]
        found = (await client.get("/console/request?id=there")).json()
        assert found["router"] == "router-0" and found["words"]["0"]
        found = (await client.get("/console/requests?slowest=true")).json()
        assert {row["router"] for row in found["rows"]} == {"router-0", "router-1"}
        assert found["silent"] == {}
        # What another router refuses as a wrong question is refused here first.
        answer = await client.get("/console/requests?limit=5&since_s=1e9")
        assert answer.status_code == 400


async def test_one_router_alone_looks_as_before(config):
    async with cluster(config) as local, asking(local) as client, looking(client) as feed:
        await local.client.complete([1] * 30, request_id="r-1", max_tokens=4)
        await feed.until(lambda one: one.rows)
        assert "router" not in feed.rows[0]
        assert feed.state["routers"] == {}
        assert "router" not in (await rows_at(local.router))[0]


async def test_nobody_is_asked_while_nobody_looks(config):
    async with two_routers(config) as (_, other), at(other) as client:
        names = lambda: {task.get_name() for task in asyncio.all_tasks()}  # noqa: E731
        assert "news of router-0" not in names()
        async with looking(client):
            await eventually(lambda: "news of router-0" in names())
            assert "news of router-1" not in names(), "a router that is asked asks nobody"
        await eventually(lambda: "news of router-0" not in names())


async def test_an_operators_key_is_needed_for_what_is_in_another_router(keyed):
    async with (
        two_routers(keyed) as (local, other),
        Client(local.router.grpc_address, api_key="t") as tenant,
    ):
        slow_steps(local.decode, STEP_S)
        stream = asyncio.create_task(tenant.complete([1] * 20, request_id="r-1", **LONG))
        await eventually(lambda: local.router.router.in_flight.find("acme", "r-1"))
        for headers in ({}, {"authorization": "Bearer t"}, {"authorization": "Bearer guess"}):
            async with at(other, headers) as client:
                for path in ("feed", "requests", "request?id=r-1"):
                    assert (await client.get(f"/console/{path}")).status_code in (401, 403)
                stop = await client.post("/console/stop?id=r-1&tenant=acme")
                assert stop.status_code in (401, 403)
        for key in (None, "t", "guess"):
            with pytest.raises((Unauthenticated, PermissionDenied)):
                await list_requests(other.grpc_address, ListRequestsRequest(), key or "")
        assert local.router.router.in_flight.find("acme", "r-1")
        stream.cancel()


async def test_a_stranger_at_the_port_for_routers_stops_nothing(config):
    async with two_routers(config) as (local, _):
        slow_steps(local.decode, STEP_S)
        stream = asyncio.create_task(local.client.complete([1] * 20, request_id="r-1", **LONG))
        await eventually(lambda: local.router.router.in_flight.find("default", "r-1"))
        stop = StopQuestion(request_id="r-1", tenant="default", operator="mallory")
        host, _, port = local.router.peer_address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        question = PeerQuestion(stop=stop).SerializeToString()
        writer.write(len(question).to_bytes(4, "big") + question)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        assert local.router.router.in_flight.find("default", "r-1")
        stream.cancel()


@pytest.fixture
def shared_secret(config, tmp_path):
    """The configuration of `bench.failover.member`."""
    made(tmp_path / SECRET)
    return replace(config, security=SecurityConfig(secret_file=str(tmp_path / SECRET)))


async def test_a_frozen_router_is_named_and_delays_nobody(shared_secret):
    async with (
        cluster(shared_secret) as local,
        member_process(shared_secret, "router", "router-1") as (process, _),
        asking(local) as client,
        looking(client) as feed,
    ):
        await feed.until(lambda one: one.state["routers"] == {"router-1": None})
        await local.client.complete([1] * 30, request_id="here", max_tokens=4)
        async with frozen(process, local):
            frozen_s = time.monotonic()
            ticks = [frozen_s]
            while not (feed.state["routers"].get("router-1") or "").startswith("it did not"):
                await feed.event()
                ticks.append(time.monotonic())
            assert max(map(sub, ticks[1:], ticks)) < MOST_TICK_S
            assert ticks[-1] - frozen_s < NAMED_S
            asked_s = time.monotonic()
            listed, explained, stopped, ended = await asyncio.gather(
                fetch_requests(
                    [local.router.grpc_address], ListRequestsRequest(rises=True), OPERATOR_KEY
                ),
                client.get("/console/request?id=nobody"),
                client.post("/console/stop?id=nobody&tenant=default", headers=OPERATOR),
                client.get("/console/requests"),
            )
            assert time.monotonic() - asked_s < NAMED_S
            assert [row["request_id"] for row in listed.rows] == ["here"]
            assert listed.silent == {"router-1": "it did not answer for 1 s"}
            assert ended.json()["silent"] == listed.silent
            for refused, status in ((explained, 404), (stopped, 503)):
                assert refused.status_code == status
                assert "no answer of router-1" in refused.json()["error"]["message"]


async def test_a_router_of_an_older_version_is_named(config):
    async with cluster(config) as local, asking(local) as client, looking(client) as feed:
        old = ReplicaRecord("router-old", "router", local.router.grpc_address, 1)
        await local.directory.register(old)
        await feed.until(lambda one: one.state["routers"].get("router-old"))
        assert feed.state["routers"]["router-old"] == "its version answers no other router"
        await local.directory.remove(old.id)
