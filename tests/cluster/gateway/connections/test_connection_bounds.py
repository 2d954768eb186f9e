"""How many connections there may be, how long they may be silent, and how they end."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import resource
import socket
from dataclasses import replace
from pathlib import Path

import httpx
from starlette.responses import Response

from cluster.gateway.connections.limits import most_connections
from cluster.gateway.uvicorn_server import start
from tests.cluster.gateway.connections.raw_client import (
    HEALTH,
    LIMITS,
    WAIT_S,
    answer,
    connected,
    refused,
    told,
)
from tests.cluster.gateway.http_listener import (
    CHAT,
    HELLO,
    JSON,
    TEXT,
    front_end,
    opened,
)
from tests.eventually import eventually


async def test_silent_connections_keep_nobody_out(generator):
    limits = replace(LIMITS, connections=32)
    async with front_end(generator, limits) as port:
        generator.endless, generator.pause_s = True, 0.01
        async with opened(port, TEXT, {"prompt": "a", "stream": True}) as (reader, _):
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(500)]
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                assert (await client.get("/healthz")).status_code == 200
            await eventually(lambda: sum(one.at_eof() for one, _ in silent) >= 500 - 32)
            await asyncio.wait_for(reader.readuntil(b"data: "), WAIT_S)
            assert not generator.closed
            for _, writer in silent:
                writer.transport.abort()


async def test_thousands_of_silent_connections_are_closed_in_time(generator):
    limits = replace(LIMITS, head_s=1.0)
    async with front_end(generator, limits) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2000)]
        await eventually(lambda: all(reader.at_eof() for reader, _ in silent))
        for _, writer in silent:
            writer.transport.abort()


async def test_where_every_connection_works_a_new_one_is_told_to_come_back(generator, caplog):
    generator.endless, generator.pause_s = True, 0.01
    limits = replace(LIMITS, connections=2)
    stream = {"prompt": "a", "stream": True}
    caplog.set_level(logging.WARNING)
    async with front_end(generator, limits) as port:
        async with opened(port, TEXT, stream), opened(port, TEXT, stream):
            await eventually(lambda: len(generator.started) == 2)
            for raw in [await told(port, HEALTH + b"\r\n") for _ in range(5)]:
                refused(raw, 503, "too_many_connections")
                assert b"retry-after: 1\r\n" in raw
        await eventually(lambda: len(generator.closed) == 2)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            await eventually(lambda: not generator.running)
            assert (await client.get("/healthz")).status_code == 200
    lines = [record for record in caplog.records if record.message == "connections were refused"]
    assert 1 <= len(lines) < 5
    assert not any(record.exc_info for record in caplog.records)


async def test_a_client_that_never_reads_is_cut():
    """Whole answers, too, not streams only."""
    large = Response(b"x" * (32 << 20))
    server = await start(large, grace_s=1, limits=replace(LIMITS, stall_s=0.3, linger_s=0.5))
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.send(HEALTH + b"\r\n")
        await eventually(lambda: open_to(server.port))
        await eventually(lambda: not open_to(server.port))
    await server.stop()


def open_to(port):
    """Established connections of the server at `port`."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"]


async def test_half_open_peers_are_found(generator):
    async with front_end(generator, LIMITS) as port:
        # Their types alone: an object of another library may warn where it is asked for its class.
        listening = [one for one in gc.get_objects() if issubclass(type(one), socket.socket)]
        (found,) = [one for one in listening if one.fileno() >= 0 and bound_to(one) == port]
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 75_000


def bound_to(sock):
    name = sock.getsockname()
    return name[1] if isinstance(name, tuple) and len(name) > 1 else None


def test_connections_are_bounded_by_files_and_requests():
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert most_connections(100) == 400
    assert 1024 <= most_connections(10**9) <= 65_536 // 2
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= soft


async def test_large_bodies_that_do_not_end_are_bounded_together(generator, monkeypatch):
    """Beyond the bound they are refused with a retry time; small bodies go on."""
    monkeypatch.setattr("cluster.gateway.http_app._BODIES_AT_ONCE", 2)
    monkeypatch.setattr("cluster.gateway.json_body.READ_S", 3.0)
    head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nContent-Length: 4000000\r\n\r\n"
    async with front_end(generator, replace(LIMITS, head_s=1.0)) as port:
        raws = await asyncio.gather(
            *(told(port, head.encode(), b" " * 3_900_000) for _ in range(6)),
            _small(port),
        )
        codes = sorted(raw.split(b" ", 2)[1] for raw in raws if raw)
    assert codes[0] == b"200"
    assert codes.count(b"429") >= 3 and codes.count(b"408") <= 3


async def _small(port):
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        reply = await client.post(TEXT, json={"prompt": "a" * 10_000})
        return b"HTTP/1.1 %d " % reply.status_code


async def test_a_client_that_closed_its_own_side_gets_its_answer(generator):
    body = json.dumps(HELLO).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nContent-Length: {len(body)}\r\n"
    generator.pause_s = 0.05
    async with front_end(generator, limits=LIMITS) as port, connected(port) as (reader, writer):
        writer.write(head.encode() + b"\r\n" + body)
        writer.write_eof()
        found = await answer(reader)
    *interim, last = found.split(b"HTTP/1.1 ")[1:]
    assert interim and set(interim) == {b"102 Processing\r\n\r\n"}
    assert last.startswith(b"200 OK") and b"one two three four" in last
    assert generator.finished


async def test_a_client_that_closed_all_of_its_connection_cancels(generator):
    generator.endless, generator.pause_s = True, 0.05
    async with front_end(generator, limits=LIMITS) as port:
        body = json.dumps(HELLO).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\n"
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await eventually(lambda: generator.started)
        writer.close()
        await eventually(lambda: len(generator.closed) == 1)
        assert not generator.finished


async def test_an_end_within_a_request_ends_the_connection(generator):
    async with front_end(generator, limits=LIMITS) as port, connected(port) as (reader, writer):
        writer.write(HEALTH)
        writer.write_eof()
        assert await answer(reader) == b""
