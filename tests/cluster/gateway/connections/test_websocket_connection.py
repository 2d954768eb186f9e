"""WebSocket clients that break the protocol, flood, stall or vanish: raw frames, no traceback."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import struct
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import pairwise

import pytest

from cluster.gateway.connections.limits import ConnectionLimits
from cluster.gateway.uvicorn_server import start
from tests.cluster.gateway.http_listener import front_end
from tests.cluster.scripted_generator import ScriptedGenerator
from tests.eventually import eventually

LIMITS = ConnectionLimits(linger_s=0.3, message_s=0.3)
WAIT_S = 30.0
CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
HANDSHAKE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


def frame(opcode, data=b"", fin=True, masked=True, length=None, reserved=0):
    """One frame; `length` announces more or less than there is."""
    size = len(data) if length is None else length
    mask = 128 if masked else 0
    first = (128 if fin else 0) | reserved << 4 | opcode
    if size < 126:
        head = struct.pack("!BB", first, mask | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, mask | 126, size)
    else:
        head = struct.pack("!BBQ", first, mask | 127, size)
    return head + (b"\0\0\0\0" if masked else b"") + data


def asking(name, **more):
    return frame(
        TEXT, json.dumps({"type": "completion", "id": name, "prompt": "a"} | more).encode()
    )


@pytest.fixture
def generator() -> ScriptedGenerator:
    return ScriptedGenerator(endless=True, pause_s=0.001)


@pytest.fixture(autouse=True)
def no_traceback(caplog):
    """Nothing that a client does may log a traceback, or anything else at the level of errors."""
    caplog.set_level(logging.INFO)
    yield
    bad = [one for one in caplog.records if one.exc_info or one.levelno >= logging.ERROR]
    assert not bad, [(one.getMessage(), one.exc_text) for one in bad]


@asynccontextmanager
async def shaken(port, more=b"", then=b""):
    """A connection on which a handshake was sent, with `then` behind it in the same write."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HANDSHAKE + more + b"\r\n" + then)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def until_closed(reader):
    """Everything that comes until the server closes."""
    found = b""
    with suppress(ConnectionError):
        while piece := await asyncio.wait_for(reader.read(1 << 16), WAIT_S):
            found += piece
    return found


def close_code(raw):
    """The code of the close frame at the end; its reason has at most 123 bytes."""
    for at in range(max(0, len(raw) - 127), len(raw) - 3):
        if raw[at] == 0x88 and at + 2 + raw[at + 1] == len(raw):
            return int.from_bytes(raw[at + 2 : at + 4], "big")
    return None


BROKEN = {
    "text that is no UTF-8": (frame(TEXT, b"\xff\xfe"), 1007),
    "no UTF-8 over two fragments": (frame(TEXT, b"\xc3", fin=False) + frame(CONT, b"\x28"), 1007),
    "no UTF-8, then a close": (frame(TEXT, b"\xff") + frame(CLOSE, b"\x03\xe8"), 1000),
    "an unmasked frame": (frame(TEXT, b"{}", masked=False), 1002),
    "an unknown opcode": (frame(3, b"x"), 1002),
    "an unknown control opcode": (frame(11, b"x"), 1002),
    "reserved bits": (frame(TEXT, b"{}", reserved=7), 1002),
    "a fragment of nothing": (frame(CONT, b"x"), 1002),
    "a message within a message": (frame(TEXT, b"x", fin=False) + frame(TEXT, b"x"), 1002),
    "a ping in fragments": (frame(PING, b"x", fin=False), 1002),
    "a long ping": (frame(PING, b"x" * 126), 1002),
    "a huge frame": (frame(TEXT, b"", length=1 << 62), 1009),
    "a frame of a negative length": (frame(TEXT, b"", length=(1 << 64) - 1), 1009),
    "a close of one byte": (frame(CLOSE, b"x"), 1002),
    "a close code that is none": (frame(CLOSE, struct.pack("!H", 5)), 1002),
    "a close code that must not be sent": (frame(CLOSE, struct.pack("!H", 1006)), 1002),
    "a close reason that is no UTF-8": (frame(CLOSE, b"\x03\xe8\xff"), 1007),
    "a close within a message": (frame(TEXT, b"x", fin=False) + frame(CLOSE, b"\x03\xe8"), 1002),
    "a message without an end": (frame(TEXT, b"x", fin=False), 1008),
    "fragments without an end": (frame(TEXT, fin=False) + frame(CONT, fin=False) * 20_000, 1008),
    "a flood of pings": (frame(PING) * 10_000, 1008),
    "a flood of pongs": (frame(PONG) * 10_000, 1008),
    "fragments that are too large": (
        frame(TEXT, b"x" * (3 << 20), fin=False) + frame(CONT, b"x" * (3 << 20), fin=False),
        1009,
    ),
    "random bytes": (random.Random(5).randbytes(1000), None),
}


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_frame_ends_the_socket_with_its_code(generator, name, running):
    sent, code = BROKEN[name]
    # What is too large is whole before its time is over.
    limits = replace(LIMITS, message_s=WAIT_S) if code == 1009 else LIMITS
    async with front_end(generator, limits) as port:
        async with shaken(port) as (reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            if running:
                generator.pause_s = 0.0
                writer.write(asking("a") + asking("b"))
                await eventually(lambda: len(generator.started) == 2)
            writer.write(sent)
            raw = await until_closed(reader)
        assert code is None or close_code(raw) == code
        await eventually(lambda: not generator.running)
        async with shaken(port) as (reader, _):
            assert (await reader.readline()).startswith(b"HTTP/1.1 101")


@pytest.mark.parametrize("name", BROKEN)
async def test_what_comes_with_the_handshake_does_no_harm(generator, name):
    sent, _ = BROKEN[name]
    async with (
        front_end(generator, LIMITS) as port,
        shaken(port, then=sent) as (reader, writer),
    ):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(frame(CLOSE, b"\x03\xe8"))
        await until_closed(reader)


@pytest.mark.parametrize("moment", ["now", "handshake", "frame", "tokens"])
async def test_a_reset_at_any_moment(generator, moment):
    async with front_end(generator, LIMITS) as port:
        for _ in range(10):
            async with shaken(port) as (reader, writer):
                if moment != "now":
                    await reader.readuntil(b"\r\n\r\n")
                if moment == "frame":
                    writer.write(asking("a")[:20])
                if moment == "tokens":
                    writer.write(asking("a"))
                    await reader.readuntil(b"tokens")
        await eventually(lambda: not generator.running)


async def test_the_server_writes_nothing_after_a_close(generator):
    async with front_end(generator, LIMITS) as port:
        for _ in range(5):
            async with shaken(port) as (reader, writer):
                writer.write(b"".join(asking(str(number)) for number in range(20)))
                await reader.readuntil(b"tokens")
                writer.write(frame(CLOSE, b"\x03\xe8") + asking("x") + frame(TEXT, b"\xff"))
                assert close_code(await until_closed(reader)) == 1000


@pytest.mark.parametrize(
    ("more", "status"),
    [
        (b"X: " + b"a" * 20_000 + b"\r\n", 431),
        (b"Sec-WebSocket-Key: x\r\n", 400),
        (b"Content-Length: 5\r\n", None),
        (b"Transfer-Encoding: chunked\r\n", None),
        (b"Sec-WebSocket-Protocol: \xff\xfe\r\n", None),
        (b"Origin: http://[\r\n", 403),
        (b"Origin: null\r\n", 403),
    ],
)
async def test_handshakes_that_fail_are_closed(generator, more, status):
    async with front_end(generator, LIMITS) as port:
        async with shaken(port, more) as (reader, _):
            raw = await until_closed(reader)
        assert status is None or raw.startswith(b"HTTP/1.1 %d " % status), raw


async def test_an_upgrade_behind_a_running_request_is_refused(generator):
    async with front_end(generator, LIMITS) as port:
        body = b'{"prompt": "a", "stream": true}'
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await eventually(lambda: generator.running)
        writer.write(HANDSHAKE + b"\r\n")
        await until_closed(reader)
        await eventually(lambda: not generator.running)
        writer.transport.abort()


async def test_unfinished_messages_are_bounded_together(generator):
    limits = replace(LIMITS, unfinished_bytes=3 << 20, message_s=WAIT_S)
    half = frame(TEXT, b"x" * (2 << 20), length=3 << 20)
    async with front_end(generator, limits) as port, shaken(port, then=half):
        async with shaken(port, then=half) as (reader, _):
            assert close_code(await until_closed(reader)) == 1013
        async with shaken(port, then=asking("a")) as (reader, _):
            await reader.readuntil(b"tokens")


async def test_a_flood_of_messages_leaves_others_their_turn(generator):
    """By the time of the loop's own thread, as other processes take theirs when they like."""
    async with front_end(generator, LIMITS) as port, shaken(port) as (reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        times_s = [time.thread_time()]
        ticking = asyncio.create_task(_tick(times_s))
        writer.write(frame(TEXT, b"{}") * 10_000)
        answered, rest, mark = 0, b"", b'"type":"error"'
        while answered < 10_000:
            rest += await asyncio.wait_for(reader.read(1 << 16), WAIT_S)
            answered += rest.count(mark)
            rest = rest[max(0, rest.rfind(mark) + len(mark)) :]
        ticking.cancel()
        gaps_s = [after - before for before, after in pairwise(times_s)]
        assert max(gaps_s) < sum(gaps_s) / 4


async def _tick(times_s):
    while True:
        await asyncio.sleep(0)
        times_s.append(time.thread_time())


async def test_a_client_that_never_reads_is_cut(generator):
    limits = replace(LIMITS, stall_s=0.5)
    async with front_end(generator, limits) as port, shaken(port) as (_, writer):
        writer.transport.pause_reading()
        writer.write(b"".join(asking(str(number), n=8) for number in range(8)))
        await eventually(lambda: generator.running)
        await eventually(lambda: not generator.running)


async def test_quiet_sockets_give_way_to_new_connections(generator):
    limits = replace(LIMITS, connections=3, quiet_s=0.0)
    async with front_end(generator, limits) as port:
        sockets = []
        for _ in range(6):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HANDSHAKE + b"\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
            sockets.append((reader, writer))
        await eventually(lambda: sum(reader.at_eof() for reader, _ in sockets[:3]) == 3)
        assert not any(reader.at_eof() for reader, _ in sockets[4:])
        for _, writer in sockets:
            writer.transport.abort()


@pytest.mark.parametrize("seed", range(20))
async def test_no_bytes_make_a_fault(generator, seed):
    """Drawn frames and pieces of frames, in drawn writes."""
    draw = random.Random(seed)
    pieces = [sent for sent, _ in BROKEN.values()] + [asking("a"), asking("b"), os.urandom(8)]
    async with front_end(generator, LIMITS) as port:
        for _ in range(10):
            async with shaken(port) as (reader, writer):
                for _ in range(draw.randrange(1, 6)):
                    piece = draw.choice(pieces)[:10_000]
                    writer.write(piece[: draw.randrange(1, len(piece) + 1)])
                    if draw.random() < 0.5:
                        await asyncio.sleep(0)
                with suppress(TimeoutError, ConnectionError):
                    await asyncio.wait_for(reader.read(1 << 16), 0.05)
        await eventually(lambda: not generator.running)


@pytest.mark.parametrize("sent", [frame(TEXT, b"\xff"), frame(3), frame(CLOSE, b"\x03\xe8")])
async def test_an_application_that_sends_after_the_end_learns_that_the_client_is_gone(sent):
    raised = []

    async def app(scope, receive, send):
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
        for kind in ("send", "close"):
            try:
                await send({"type": f"websocket.{kind}", "text": "late"})
            except Exception as error:
                raised.append(error)

    server = await start(app, grace_s=1, limits=LIMITS)
    async with shaken(server.port, then=sent) as (reader, _):
        await until_closed(reader)
    await server.stop()
    assert len(raised) == 2
    assert all(isinstance(error, OSError) for error in raised)
