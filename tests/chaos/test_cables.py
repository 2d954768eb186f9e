"""Cables deliver the faults that they are told to, and count what they met."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from tests.chaos.cables import HOST, Cables, dial_tcp
from tests.eventually import eventually


@asynccontextmanager
async def echo_behind_a_cable():
    """A connection to an echo through a cable: its cables, reader and writer."""

    async def echo(reader, writer):
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, HOST, 0)

    async def port():
        return server.sockets[0].getsockname()[1]

    cables = Cables(dict)
    host, _, number = (await cables.lay("echo", dial_tcp(port), "calls", "me")).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(number))
    try:
        yield cables, reader, writer
    finally:
        writer.close()
        await cables.close()
        server.close()


async def test_a_held_wire_keeps_its_bytes():
    async with echo_behind_a_cable() as (cables, reader, writer):
        with cables.weather(lambda wire: wire.kind == "calls") as weather:
            writer.write(b"word")
            await eventually(lambda: weather.met)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(4), 0.1)
        assert await asyncio.wait_for(reader.readexactly(4), 5) == b"word"


async def test_a_slow_wire_delays_each_piece():
    async with echo_behind_a_cable() as (cables, reader, writer):
        with cables.weather(lambda wire: wire.dialler == "me", delay_s=0.1) as weather:
            began_s = time.monotonic()
            writer.write(b"word")
            assert await reader.readexactly(4) == b"word"
        assert time.monotonic() - began_s >= 0.2
        assert weather.met >= 2


async def test_a_cut_wire_is_reset_and_counts_if_it_carried_data():
    async with echo_behind_a_cable() as (cables, reader, writer):
        writer.write(b"word")
        assert await reader.readexactly(4) == b"word"
        assert cables.cut(lambda wire: wire.kind == "link") == 0
        assert cables.cut(lambda wire: wire.target == "echo") == 1
        with pytest.raises(ConnectionError):
            await reader.readexactly(1)
        await eventually(lambda: not cables.wires)
