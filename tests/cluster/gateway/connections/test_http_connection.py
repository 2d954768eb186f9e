"""HTTP clients that send too much, too slowly or nothing, over real sockets."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from cluster.tenants.api_keys import FileKeys
from tests.cluster.gateway.connections.raw_client import (
    HEALTH,
    IMPATIENT,
    LIMITS,
    answer,
    connected,
    refused,
    told,
)
from tests.cluster.gateway.http_listener import (
    AS_JSON,
    HELLO,
    JSON,
    TEXT,
    front_end,
    opened,
)
from tests.eventually import eventually


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
    limits = replace(LIMITS, head_s=0.5, idle_s=1)
    async with front_end(generator, limits) as port, connected(port) as (reader, writer):
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        writer.write(HEALTH + b"\r\n")
        await reader.readuntil(b"}")
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


async def test_ordinary_requests_are_served(generator):
    async with front_end(generator) as port, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        for _ in range(3):
            assert (await client.post(url, json=HELLO)).status_code == 200
        long = HELLO | {"messages": [{"role": "user", "content": "x" * 3_000_000}]}
        reply = await client.post(url, content=json.dumps(long), headers=AS_JSON)
        assert reply.status_code == 200
