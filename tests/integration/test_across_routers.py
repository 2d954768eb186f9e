"""Two real routers: a client ends, and an operator understands, at one what is in the other."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import yaml
from websockets.asyncio.client import connect

from cluster.api import Started
from cluster.client.admin_client import fetch_requests
from cluster.tenants.hashed_keys import hash_of
from engine.errors import Cancelled, Unavailable
from protos.router_pb2 import ListRequestsRequest
from tandem_client import Client
from tests.eventually import eventually
from tests.integration.local import OPERATOR_KEY, cluster, slow_steps
from tests.integration.test_all_routers import (
    NAMED_S,
    STEP_S,
    at,
    frozen,
    rows_at,
    shared_secret,
    two_routers,
)
from tests.integration.test_console import LONG
from tests.integration.test_frozen import START_S, member_process
from tests.integration.test_resumable import die

__all__ = ["shared_secret"]
# The clock of the other router's host is ahead by so much; a prompt is computed in less.
AHEAD_S = 2.0
PROMPT_TOKENS = 1500


@pytest.fixture
def two_tenants(config, tmp_path):
    file = tmp_path / "keys.yaml"
    keys = {"acme": [hash_of("a")], "evil": [hash_of("e")]}
    file.write_text(yaml.safe_dump({"tenants": keys}))
    return replace(config, router=replace(config.router, api_keys=str(file)))


async def test_a_client_cancels_at_one_router_what_runs_in_the_other(two_tenants):
    async with (
        two_routers(two_tenants) as (local, other),
        Client(local.router.grpc_address, api_key="a") as first,
        Client(other.grpc_address, api_key="a") as second,
        Client(other.grpc_address, api_key="e") as evil,
    ):
        slow_steps(local.decode, STEP_S)
        stream = asyncio.create_task(first.complete([1] * 20, request_id="r-1", **LONG))
        await eventually(lambda: local.router.router.in_flight.find("acme", "r-1"))
        assert not await evil.cancel("r-1"), "its tenant alone may cancel it"
        assert not await second.cancel("nobody")
        assert not stream.done()
        assert await second.cancel("r-1")
        with pytest.raises(Cancelled, match="the request was cancelled"):
            await stream
        await local.idle()
        (row,) = await rows_at(other, request_id="r-1")
        assert (row["outcome"], row["router"]) == ("cancelled", "router-0")
        assert not await second.cancel("r-1"), "it has ended"


async def test_a_cancel_that_comes_by_both_routers_ends_the_stream_once(two_tenants):
    """A client that knows two routers asks both, and the second asks the first one again."""
    async with (
        two_routers(two_tenants) as (local, other),
        Client([local.router.grpc_address, other.grpc_address], api_key="a") as client,
    ):
        for number in range(10):
            name = f"r-{number}"
            stream = asyncio.create_task(client.complete([1] * 20, request_id=name, **LONG))
            await eventually(
                lambda name=name: any(
                    one.router.in_flight.find("acme", name) for one in (local.router, other)
                )
            )
            assert await client.cancel(name)
            with pytest.raises(Cancelled, match="the request was cancelled"):
                await asyncio.wait_for(stream, 30)


async def test_a_request_of_a_router_that_drains_is_cancelled_too(config):
    async with two_routers(config) as (local, other), Client(other.grpc_address) as client:
        slow_steps(local.decode, STEP_S)
        stream = asyncio.create_task(client.complete([1] * 20, request_id="r-1", **LONG))
        await eventually(lambda: other.router.in_flight.find("default", "r-1"))
        draining = asyncio.create_task(other.drain(60))
        await eventually(lambda: [one for one in local.router.peers.others() if one.leaving])
        assert await local.client.cancel("r-1")
        with pytest.raises(Cancelled):
            await stream
        await asyncio.wait_for(draining, 30)


async def begun(client):
    """A resumable stream that runs: its task and its id."""
    known = asyncio.get_running_loop().create_future()

    async def read():
        async for event in client.generate([1] * 20, resumable=True, **LONG):
            if isinstance(event, Started):
                known.set_result(event.stream_id)

    return asyncio.create_task(read()), await known


async def over_http(other, stream_id, key):
    headers = {"authorization": f"Bearer {key}"}
    async with at(other, headers) as client:
        answer = await client.delete(f"/v1/streams/{stream_id}")
    return answer.status_code == httpx.codes.OK


async def over_websocket(other, stream_id, key):
    headers = {"authorization": f"Bearer {key}"}
    async with connect(
        f"ws://{other.http_address}/v1/stream", additional_headers=headers
    ) as socket:
        await socket.send(json.dumps({"type": "cancel", "id": "x", "stream_id": stream_id}))
        return json.loads(await socket.recv())["type"] == "cancelled"


async def over_grpc(other, stream_id, key):
    async with Client(other.grpc_address, api_key=key) as client:
        return await client.cancel(stream_id=stream_id)


@pytest.mark.parametrize("cancel", [over_http, over_websocket, over_grpc])
async def test_a_stream_is_cancelled_at_the_other_router_by_its_tenant(two_tenants, cancel):
    async with (
        two_routers(two_tenants) as (local, other),
        Client(local.router.grpc_address, api_key="a") as client,
    ):
        slow_steps(local.decode, STEP_S)
        task, stream_id = await begun(client)
        assert not await cancel(other, stream_id, "e")
        assert await cancel(other, stream_id, "a")
        with pytest.raises(Cancelled):
            await asyncio.wait_for(task, 30)
        await local.idle()


async def test_a_cancel_does_not_wait_for_a_frozen_router(shared_secret):
    async with (
        cluster(shared_secret) as local,
        member_process(shared_secret, "router", "router-1") as (process, _),
    ):
        await eventually(lambda: local.router.peers.others())
        assert not await local.client.cancel("nobody")
        async with frozen(process, local):
            asked_s = time.monotonic()
            async with Client(local.router.grpc_address, retries=0) as client:
                with pytest.raises(Unavailable, match="a router did not answer"):
                    await client.cancel("nobody")
            wanted = ListRequestsRequest(request_id="nobody")
            found = await fetch_requests([local.router.grpc_address], wanted, OPERATOR_KEY)
            assert time.monotonic() - asked_s < NAMED_S
            assert found.silent == {"router-1": "it did not answer for 1 s"}


async def test_rows_of_a_dead_router_are_gone_and_explain_says_so(config):
    async with two_routers(config) as (local, other):
        async with Client(other.grpc_address) as client:
            await client.complete([1] * 30, request_id="there", max_tokens=4)
        queued = [
            local.client.complete([number] * 1400, request_id=f"here-{number}", max_tokens=4)
            for number in range(1, 5)
        ]
        await asyncio.gather(*queued)
        assert [row["router"] for row in await rows_at(local.router, request_id="there")]
        await die(other)
        await eventually(lambda: not local.router.peers.others())
        address, wanted = local.router.grpc_address, ListRequestsRequest(request_id="there")
        found = await fetch_requests([address], wanted, OPERATOR_KEY)
        assert found.rows == []
        assert found.silent["router-1"].endswith("ago, and its rows are gone")
        rows = [
            row
            for number in range(1, 5)
            for row in await rows_at(local.router, request_id=f"here-{number}")
        ]
        waited = [row for row in rows if row["behind"]]
        assert waited, "no prompt waited behind another one"
        assert all("router-1" in row["behind_without"] for row in waited)


AHEAD = f"""
import runpy, time
real = time.time
time.time = lambda: real() + {AHEAD_S}
runpy.run_module("bench.failover.member", run_name="__main__", alter_sys=True)
"""


@asynccontextmanager
async def router_ahead(config, name):
    """The address of a router in a process of its own, whose wall clock is ahead."""
    folder = Path(config.security.secret_file).parent
    more = ["router", name, config.directory.url, str(folder), config.model.path]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AHEAD, *more, stdin=pipe, stdout=pipe
    )
    try:
        line = await asyncio.wait_for(process.stdout.readline(), START_S)
        yield json.loads(line)["address"]
    finally:
        process.kill()
        await process.wait()


async def test_a_request_waited_behind_prompts_of_the_other_router(shared_secret):
    """One prefill replica serves both routers, and the hosts' clocks differ by seconds."""
    async with (
        cluster(shared_secret) as local,
        router_ahead(shared_secret, "router-1") as address,
        Client(address) as there,
    ):
        await eventually(lambda: local.router.peers.others())
        for client in (local.client, there):  # what a first request alone needs
            await client.complete([7] * PROMPT_TOKENS, max_tokens=2)
        theirs = [
            asyncio.create_task(
                there.complete(
                    [number] * PROMPT_TOKENS, request_id=f"theirs-{number}", max_tokens=2
                )
            )
            for number in range(10, 18)
        ]
        await eventually(lambda: local.prefill[0].load().waiting)
        await local.client.complete([3] * PROMPT_TOKENS, request_id="late", max_tokens=2)
        await asyncio.gather(*theirs)
        (row,) = await rows_at(local.router, request_id="late")
        (choice,) = row["choices"]
        waited_s = choice["queue_s"] - choice["sent_s"]
        behind = [one for one in row["behind"] if one["stage"] == "prefill_queue"]
        assert {one["router"] for one in behind} == {"router-1"}, row["behind"]
        assert all(one["request_id"].startswith("theirs-") for one in behind)
        assert "behind_without" not in row
        total_s = sum(one["seconds"] for one in behind)
        assert 0 < total_s <= waited_s + 0.05
        assert len(behind) == 5 or total_s > waited_s / 2
