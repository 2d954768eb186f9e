"""A cancel ends the work: on both pools, at once, and before it is answered."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import httpx
import pytest
from websockets.asyncio.client import connect

from cluster.api import Tokens
from cluster.client.admin_client import fetch_status
from cluster.telemetry.router_metrics import TIME_TO_CANCEL
from engine import telemetry
from engine.errors import Cancelled
from tandem_client import Client
from tests.eventually import eventually
from tests.integration.local import OPERATOR_KEY, LocalCluster, cluster, slow_steps

LONG = 10
CHUNK = 64
PROMPT = 1500
STREAMS = 12


class Computed:
    """Prompt tokens that the replicas' engines were given, by request."""

    def __init__(self, replicas):
        self.tokens: Counter[str] = Counter()
        for replica in replicas:
            self._watch(replica.parts.model.engine)

    def _watch(self, engine):
        begin = engine.begin

        def counted(spans, stored=None):
            for span in spans:
                self.tokens[span.sequence.owner.split(".")[0]] += span.count
            return begin(spans, stored)

        engine.begin = counted

    @property
    def long(self) -> int:
        return sum(count for name, count in self.tokens.items() if name.startswith("long"))


class Times:
    """A metrics backend that keeps the times to cancel."""

    def __init__(self):
        self.seen: list[float] = []

    def attach(self, metric):
        if metric is TIME_TO_CANCEL:
            return lambda value, labels: self.seen.append(value)
        return lambda value, labels: None


async def ask_long(local: LocalCluster, number: int) -> None:
    async for _ in local.client.generate(
        [number + 1] * PROMPT, max_tokens=50, ignore_eos=True, request_id=f"long-{number}"
    ):
        pass


def due(local: LocalCluster) -> int:
    """Prompt tokens that the replicas still have to compute."""
    return sum(replica.load().prompt_tokens_due for replica in local.replicas)


def left(local: LocalCluster, name: str) -> list[str]:
    """Requests with such an id that a replica still has."""
    parts = [replica.parts for replica in local.replicas]
    owners = [one.prefill.scheduler.owners() | one.decode.scheduler.owners() for one in parts]
    return [owner for some in owners for owner in some if owner.startswith(name)]


def hold_passes(replica) -> asyncio.Event:
    """Passes of the replica's prefill loop go on once the event is set."""
    worker, go_on = replica.parts.worker, asyncio.Event()
    pursue = worker.pursue

    async def delayed(*arguments, **named):
        await go_on.wait()
        return await pursue(*arguments, **named)

    worker.pursue = delayed
    return go_on


async def test_ten_long_prompts_that_are_cancelled_cost_a_short_one_at_most_a_chunk(config):
    config = replace(
        config,
        kv=replace(config.kv, blocks=1200),  # for all of them at once
        prefill=replace(config.prefill, chunk_tokens=CHUNK),
    )
    times = Times()
    telemetry.install(times)
    try:
        async with cluster(config) as local:
            computed = Computed(local.replicas)
            # However slowly they come, none is computed before all are there.
            go_on = hold_passes(local.prefill[0])
            streams = [asyncio.create_task(ask_long(local, number)) for number in range(LONG)]
            await eventually(lambda: due(local) > 0.8 * LONG * PROMPT)
            go_on.set()
            await eventually(lambda: computed.long > CHUNK)
            cancels = [local.client.cancel(f"long-{number}") for number in range(LONG)]
            assert all(await asyncio.gather(*cancels))
            before = computed.long
            short = await local.client.complete("hello", max_tokens=4, ignore_eos=True)
            outcomes = await asyncio.gather(*streams, return_exceptions=True)
            assert all(isinstance(outcome, Cancelled) for outcome in outcomes)
            await eventually(lambda: len(times.seen) == LONG)
            # At the moment when the last cancel was answered nothing was left anywhere.
            assert not left(local, "long")
            # The short one's hand-over may be confirmed only after its end.
            await eventually(lambda: not any(replica.load().used for replica in local.replicas))
            assert short.summary.completion_tokens == 4
            # The step that ran meanwhile, and the one that was about to; not the other 15,000.
            assert computed.long - before <= 2 * CHUNK
            assert computed.long < PROMPT * LONG / 2
    finally:
        telemetry.uninstall(times)


async def test_clients_that_go_away_in_every_phase_are_timed(config):
    times = Times()
    telemetry.install(times)
    try:
        async with cluster(config) as local:
            for number, wanted in enumerate((0, 1, 5)):
                events = local.client.generate([number + 1] * 700, max_tokens=900, ignore_eos=True)
                seen = 0
                async for event in events:
                    seen += len(event.tokens) if isinstance(event, Tokens) else 0
                    if seen >= wanted:
                        break
                await events.aclose()
                await eventually(lambda due=number + 1: len(times.seen) == due)
                assert not left(local, "")
                # Blocks that KV was being written to are cleared in between two steps.
                await eventually(lambda: not any(replica.load().used for replica in local.replicas))
    finally:
        telemetry.uninstall(times)


@asynccontextmanager
async def over_http(local: LocalCluster, asked):
    """A stream whose first piece has come; its connection is closed on the way out."""
    url = f"http://{local.router.http_address}/v1/completions"
    async with (
        httpx.AsyncClient(timeout=30) as client,
        client.stream("POST", url, json=asked) as reply,
    ):
        lines = reply.aiter_lines()
        await anext(lines)
        yield


@asynccontextmanager
async def over_grpc(local: LocalCluster, asked):
    options = {name: asked[name] for name in ("max_tokens", "ignore_eos", "request_id")}
    async with Client(local.router.grpc_address) as client:
        events = client.generate(asked["prompt"], **options)
        while not isinstance(await anext(events), Tokens):
            pass
        yield


@asynccontextmanager
async def over_websocket(local: LocalCluster, asked):
    url = f"ws://{local.router.http_address}/v1/stream"
    async with connect(url) as socket:
        await socket.send(json.dumps(asked | {"type": "completion", "id": "mine"}))
        while json.loads(await socket.recv())["type"] != "tokens":
            pass
        yield


@pytest.mark.parametrize("opened", [over_http, over_grpc, over_websocket])
async def test_streams_whose_connections_close_end_on_both_pools_and_are_timed(config, opened):
    times, asked = Times(), {"ignore_eos": True, "stream": True}
    telemetry.install(times)
    try:
        async with cluster(config) as local:
            stays = asyncio.create_task(
                local.client.complete([9] * 40, max_tokens=200, ignore_eos=True)
            )
            async with AsyncExitStack() as streams:
                for number in range(3):
                    mine = {"prompt": [number + 1] * 40, "request_id": f"gone-{number}"}
                    stream = opened(local, asked | mine | {"max_tokens": 1900})
                    await streams.enter_async_context(stream)
                assert len(left(local, "gone")) >= 3
            # A stream that ended by itself would have no time to cancel.
            await eventually(lambda: len(times.seen) == 3 and not left(local, "gone"))
            assert (await stays).summary.completion_tokens == 200
            await local.idle()
            assert len(times.seen) == 3
    finally:
        telemetry.uninstall(times)


async def test_twelve_streams_that_are_closed_at_once_are_gone_and_are_shown_as_gone(config):
    """The status shows what the replicas report, not what the directory heard a second ago."""
    slow = replace(config.directory, lease_s=120.0, heartbeat_s=60.0)
    config = replace(config, directory=slow, kv=replace(config.kv, blocks=1200))
    async with cluster(config) as local:
        slow_steps(local.decode, 0.04)
        streams = [asyncio.create_task(ask_long_answer(local, number)) for number in range(STREAMS)]
        await eventually(lambda: local.decode[0].load().running == STREAMS)
        await eventually_shown(local, STREAMS)
        closed_s = time.monotonic()
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        await eventually(lambda: not left(local, "closed"))
        # 250 ms are promised; a loaded machine gets more, but no heartbeat could come meanwhile.
        await eventually_shown(local, 0)
        assert time.monotonic() - closed_s < 30.0


async def eventually_shown(local: LocalCluster, running: int) -> None:
    """Wait until `tandem status` would show so many requests on the replicas and the router."""
    async with asyncio.timeout(30.0):
        while True:
            status = await fetch_status(local.router.grpc_address, OPERATOR_KEY)
            shown = {one.role: one.running + one.waiting for one in status.replicas}
            if shown == {"prefill": 0, "decode": running, "router": running}:
                return
            await asyncio.sleep(0.01)


async def ask_long_answer(local: LocalCluster, number: int) -> None:
    async for _ in local.client.generate(
        [number + 1] * 8, max_tokens=900, ignore_eos=True, request_id=f"closed-{number}"
    ):
        pass
