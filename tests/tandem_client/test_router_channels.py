"""A router that failed is set aside until its health check succeeds."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import AsyncExitStack

import pytest

from cluster.gateway.grpc_server import GrpcServer, start
from tandem_client import Client, Unavailable, errors, router_channels
from tests.cluster.scripted_generator import ScriptedGenerator, raised


class Pair:
    """Two routers, a client of both, and the number of calls that each got."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.generators = [ScriptedGenerator(), ScriptedGenerator()]
        self.servers: list[GrpcServer] = []

    async def open(self) -> Client:
        for generator in self.generators:
            self.servers.append(await self.start(generator))
        targets = [f"127.0.0.1:{server.port}" for server in self.servers]
        return await self._stack.enter_async_context(Client(targets, retries=1))

    async def start(self, generator: ScriptedGenerator, port: int = 0) -> GrpcServer:
        server = await start(generator, port=port)
        self._stack.push_async_callback(server.stop, 0)
        return server

    @property
    def calls(self) -> list[int]:
        return [len(generator.requests) for generator in self.generators]


@pytest.fixture
async def pair(monkeypatch):
    monkeypatch.setattr(router_channels, "PAUSES_S", (0.05,))
    async with AsyncExitStack() as stack:
        yield Pair(stack)


async def calls_reach_the_first(pair: Pair, client: Client) -> None:
    """Call until a call reaches the first router; raises TimeoutError."""
    before, ends_s = pair.calls[0], time.monotonic() + 60
    while pair.calls[0] == before:
        assert time.monotonic() < ends_s
        await client.complete("a")


async def test_the_first_router_gets_the_calls(pair):
    client = await pair.open()
    for _ in range(3):
        await client.complete("a")
    assert pair.calls == [3, 0]


async def test_a_router_that_died_gets_calls_again_once_it_serves(pair):
    client = await pair.open()
    await client.complete("a")
    await pair.servers[0].stop(0)
    for _ in range(3):
        await client.complete("a")
    assert pair.calls == [1, 3]
    await pair.start(pair.generators[0], pair.servers[0].port)
    await calls_reach_the_first(pair, client)


async def test_a_router_without_replicas_is_left_at_once(pair):
    client, first = await pair.open(), pair.generators[0]
    first.error = Unavailable("no replica", retry_after_s=30.0)
    began_s = time.monotonic()
    for _ in range(3):
        await client.complete("a")
    assert time.monotonic() - began_s < 25
    assert pair.calls[1] == 3


async def test_a_router_that_does_not_serve_stays_aside(pair):
    pair.generators[0].gone = ("decode",)
    client = await pair.open()
    pair.generators[0].error = Unavailable("no replica", retry_after_s=30.0)
    pair.generators[1].pause_s = 0.05  # so that there are health checks meanwhile
    for _ in range(5):
        await client.complete("a")
    assert pair.calls == [1, 5]
    pair.generators[0].error, pair.generators[0].gone = None, ()
    await calls_reach_the_first(pair, client)


async def test_a_silent_router_costs_one_deadline(pair):
    await pair.open()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ports = (silent.getsockname()[1], pair.servers[1].port)
        async with Client([f"127.0.0.1:{port}" for port in ports]) as client:
            error = await raised(client.complete("a", timeout_s=0.3))
            assert type(error) is errors.DeadlineExceeded
            for _ in range(3):
                assert (await client.complete("a", timeout_s=60.0)).text


async def test_closing_ends_the_checks(pair):
    client = await pair.open()
    await pair.servers[0].stop(0)
    await client.complete("a")
    running = len(asyncio.all_tasks())
    await client.close()
    assert len(asyncio.all_tasks()) < running


async def test_where_all_failed_all_are_tried(pair):
    client = await pair.open()
    for server in pair.servers:
        await server.stop(0)
    assert type(await raised(client.complete("a"))) is Unavailable
    await pair.start(pair.generators[1], pair.servers[1].port)
    assert (await client.complete("a")).text == "one two three four"
