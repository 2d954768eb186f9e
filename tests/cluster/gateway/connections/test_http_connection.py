"""HTTP clients that send too much, too slowly or nothing, over real sockets."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import resource
import socket
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from starlette.responses import Response

from cluster.gateway.connections.limits import ConnectionLimits, most_connections
from cluster.gateway.uvicorn_server import start
from cluster.tenants.api_keys import FileKeys
from tests.cluster.gateway.http_listener import (
    AS_JSON,
    CHAT,
    HELLO,
    JSON,
    TEXT,
    front_end,
    opened,
)
from tests.cluster.scripted_generator import ScriptedGenerator
from tests.eventually import eventually

LIMITS = ConnectionLimits(linger_s=0.5)
IMPATIENT = replace(LIMITS, head_s=0.3, idle_s=1)
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
WAIT_S = 10.0


@pytest.fixture
def generator() -> ScriptedGenerator:
    return ScriptedGenerator()


@asynccontextmanager
async def connected(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def answer(reader):
    """Everything until the server closes; a reset counts as the end."""
    found = b""
    with suppress(ConnectionError):
        while piece := await asyncio.wait_for(reader.read(1 << 16), WAIT_S):
            found += piece
    return found


async def told(port, *pieces):
    """What a client gets that sends these pieces and never closes; writing ends with a reset."""
    async with connected(port) as (reader, writer):
        with suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
        return await answer(reader)


def refused(raw, status, code):
    """Check an answer in OpenAI's error form, after which the connection is closed."""
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), raw[:200]
    assert b"connection: close" in head
    assert json.loads(body)["error"]["code"] == code


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (HEALTH + b"X: " + b"a" * 100_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (HEALTH + b"X: " + b"a" * 100_000, 431, "headers_too_large"),
        (HEALTH + b"X" * 100_000, 431, "headers_too_large"),
        (HEALTH + b"X: a\r\n" * 200 + b"\r\n", 431, "headers_too_large"),
        (b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, "url_too_long"),
        (b"GET /" + b"a" * 10_000, 414, "url_too_long"),
        (b"\r\n" * 50_000, 431, "headers_too_large"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400, "bad_request"),
        (HEALTH + b"Host: other\r\n\r\n", 400, "bad_request"),
        (b"GET healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "bad_request"),
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "bad_request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "bad_request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "bad_request"),
        (HEALTH + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "bad_request"),
        (HEALTH + b"Content-Length: -1\r\n\r\n", 400, "bad_request"),
    ],
)
async def test_what_is_too_large_or_no_http_is_refused_and_closed(generator, sent, status, code):
    async with front_end(generator, LIMITS) as port:
        refused(await told(port, sent), status, code)


async def test_large_headers_take_no_memory(generator):
    piece = b"a" * (1 << 20)
    async with front_end(generator, LIMITS) as port:
        await told(port, HEALTH + b"Connection: close\r\n\r\n")
        gc.collect()
        before = resident_bytes()
        async with asyncio.TaskGroup() as clients:
            for _ in range(8):
                clients.create_task(told(port, HEALTH + b"X: ", *[piece] * 16))
        assert resident_bytes() - before < 32 << 20


@pytest.mark.parametrize(
    "sent", [b"", b"\r\n", HEALTH, HEALTH + b"\r\n" + HEALTH, HEALTH + b"\r\n\r\n"]
)
async def test_headers_have_a_time(generator, sent):
    async with front_end(generator, IMPATIENT) as port:
        raw = await told(port, sent)
        if sent.endswith(HEALTH):
            refused(b"HTTP" + raw.rpartition(b"HTTP")[2], 408, "request_timeout")


async def test_trickled_headers_have_a_time_too(generator):
    async with front_end(generator, IMPATIENT) as port, connected(port) as (reader, writer):
        trickling = asyncio.create_task(_trickle(writer))
        refused(await answer(reader), 408, "request_timeout")
        trickling.cancel()


async def _trickle(writer):
    writer.write(HEALTH)
    for _ in range(1000):
        writer.write(b"X: a\r\n")
        await asyncio.sleep(0.02)


async def test_a_connection_rests_between_two_requests(generator):
    limits = replace(LIMITS, head_s=0.1, idle_s=1)
    async with front_end(generator, limits) as port, connected(port) as (reader, writer):
        loop = asyncio.get_running_loop()
        writer.write(HEALTH + b"\r\n")
        await reader.readuntil(b"}")
        began_s = loop.time()
        assert await answer(reader) == b""
        assert loop.time() - began_s > 0.9


def chunked(*parts):
    head = (
        f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return head.encode() + b"".join(parts)


@pytest.mark.parametrize(
    "parts",
    [
        (b"1;", b"x" * 1_000_000),
        (b"1;" + b"x=y;" * 250_000,),
        (b"2\r\n{}\r\n0\r\n", b"X: " + b"a" * 1_000_000),
        (b"2\r\n{}\r\n0\r\n", b"X: a\r\n" * 200),
    ],
)
async def test_chunk_extensions_and_trailers_are_bounded(generator, parts):
    async with front_end(generator, LIMITS) as port:
        refused(await told(port, chunked(*parts)), 431, "headers_too_large")
    assert not generator.requests


async def test_trailers_are_no_headers(generator):
    body = json.dumps({"prompt": "a"}).encode()
    sent = chunked(b"%x\r\n" % len(body), body, b"\r\n0\r\nX-Tandem-Tenant: other\r\n\r\n")
    async with front_end(generator, LIMITS) as port, connected(port) as (reader, writer):
        writer.write(sent)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    assert generator.requests[0].tenant == "default"


async def test_pipelined_requests_are_answered_in_order_up_to_a_bound(generator):
    async with front_end(generator, LIMITS) as port:
        raw = await told(port, (HEALTH + b"\r\n") * 10 + HEALTH + b"Connection: close\r\n\r\n")
        assert raw.count(b"HTTP/1.1 200") == 11
        generator.endless, generator.pause_s = True, 0.01
        async with opened(port, TEXT, {"prompt": "a", "stream": True}) as (reader, writer):
            await eventually(lambda: len(generator.started) == 1)
            writer.write((HEALTH + b"\r\n") * 10_000)
            await answer(reader)
        await eventually(lambda: len(generator.closed) == 1)


async def test_the_end_of_a_connection_reaches_the_request_before_a_pipelined_one(generator):
    generator.endless, generator.pause_s = True, 0.01
    async with front_end(generator, LIMITS) as port:
        async with opened(port, TEXT, {"prompt": "a", "stream": True}) as (_, writer):
            await eventually(lambda: len(generator.started) == 1)
            writer.write(HEALTH + b"\r\n")
            await writer.drain()
        await eventually(lambda: len(generator.closed) == 1)


async def test_an_absolute_url_names_the_host(generator):
    async with front_end(generator, LIMITS) as port:
        for host, status in ((b"127.0.0.1:1", 200), (b"elsewhere.example", 421)):
            line = b"GET http://%s/healthz HTTP/1.1\r\nHost: localhost\r\n" % host
            raw = await told(port, line + b"Connection: close\r\n\r\n")
            assert raw.startswith(b"HTTP/1.1 %d " % status)


async def test_http_1_0_head_and_options(generator):
    async with front_end(generator, LIMITS) as port:
        assert (await told(port, b"GET /healthz HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200")
        head = await told(port, b"HEAD /healthz HTTP/1.0\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and head.endswith(b"\r\n\r\n")
        assert b" 405 " in await told(port, b"OPTIONS /healthz HTTP/1.0\r\n\r\n")


async def test_another_upgrade_is_ignored(generator):
    async with front_end(generator, LIMITS) as port:
        raw = await told(port, HEALTH + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        assert raw.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
async def test_a_refused_body_is_not_read(generator, tmp_path, expect):
    """The answer comes at once, and the connection takes so much more and no longer."""
    keys = tmp_path / "keys.yaml"
    keys.write_text(json.dumps({"tenants": {"acme": ["0" * 64]}}))
    limits = replace(LIMITS, head_s=0.3, dropped_bytes=1 << 20)
    head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\n".encode() + expect
    head += b"Content-Length: 1000000000\r\n\r\n"
    async with front_end(generator, limits, keys=FileKeys(keys)) as port:
        for more in (b"", b"x" * (8 << 20)):
            raw = await told(port, head, more)
            # A reset can overtake the answer only where the client still writes.
            assert (more and not raw) or (
                raw.startswith(b"HTTP/1.1 401") and b"100 Continue" not in raw
            )
    async with front_end(generator, limits) as port:
        assert (await told(port, head)).startswith(b"HTTP/1.1 413")


async def test_the_rest_of_a_body_after_the_answer_does_no_harm(generator):
    async with front_end(generator, LIMITS) as port, connected(port) as (reader, writer):
        writer.write(HEALTH + b"Content-Length: 10\r\n\r\n")
        await reader.readuntil(b"}")
        writer.write(b"x" * 10 + HEALTH + b"\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")


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
        await eventually(lambda: all(reader.at_eof() for reader, _ in silent), WAIT_S)
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
    server = await start(large, grace_s=1, limits=replace(LIMITS, stall_s=0.3))
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.send(HEALTH + b"\r\n")
        await eventually(lambda: open_to(server.port))
        await eventually(lambda: not open_to(server.port), WAIT_S)
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


async def test_ordinary_requests_are_served(generator):
    async with front_end(generator) as port, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        for _ in range(3):
            assert (await client.post(url, json=HELLO)).status_code == 200
        long = HELLO | {"messages": [{"role": "user", "content": "x" * 3_000_000}]}
        reply = await client.post(url, content=json.dumps(long), headers=AS_JSON)
        assert reply.status_code == 200


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
        await eventually(lambda: len(generator.closed) == 1, 2.0)
        assert not generator.finished


async def test_an_end_within_a_request_ends_the_connection(generator):
    async with front_end(generator, limits=LIMITS) as port, connected(port) as (reader, writer):
        writer.write(HEALTH)
        writer.write_eof()
        assert await answer(reader) == b""
