"""The dialling side faces servers that do not know the secret: they learn nothing."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from bench.core.event_loop import run
from engine.errors import ConfigError, Unavailable
from protos.wire.client import Connector
from protos.wire.framing import Wire
from protos.wire.handshake import (
    ANSWER_BYTES,
    HELLO_BYTES,
    NONCE_BYTES,
    Transcript,
    new_nonce,
    read_hello,
)
from tests.eventually import eventually
from tests.protos.wire import test_strangers as strangers
from tests.protos.wire.rig import (
    HOST,
    OTHER_SECRET,
    PURPOSES,
    SECRET,
    connector,
    echoing,
    stream_to,
)


class Opened:
    """A protocol that notes whether it got the connection."""

    def __init__(self):
        self.count = 0
        self.wire = Wire(lambda message: None, lambda reason: None, self.opened)

    def opened(self):
        self.count += 1
        self.wire.send(b"a request")


@asynccontextmanager
async def squatter(answer):
    """A server without the secret: (its address, everything that it heard)."""
    heard, meetings = bytearray(), set()

    async def meet(reader, writer):
        try:
            said = await reader.read(1 << 16)
            heard.extend(said)
            writer.write(await answer(said))
            while more := await reader.read(1 << 16):
                heard.extend(more)
        except OSError:
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(lambda *ends: meeting(meet(*ends)), HOST, 0)

    def meeting(work):
        task = asyncio.ensure_future(work)
        meetings.add(task)

    try:
        yield f"{HOST}:{server.sockets[0].getsockname()[1]}", heard
    finally:
        server.close()
        await asyncio.wait_for(asyncio.gather(*meetings), 5)


async def zeros(said):
    return bytes(ANSWER_BYTES)


async def echo(said):
    return said[-NONCE_BYTES:] + said[-NONCE_BYTES:]


async def too_much(said):
    return bytes(1 << 20)


async def http(said):
    return b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" + bytes(64)


async def another_secret(said):
    purpose, nonce = read_hello(said)
    mine = new_nonce()
    return mine + Transcript(purpose, "", nonce, mine).proof(OTHER_SECRET, "server")


@pytest.mark.parametrize("answer", [zeros, echo, too_much, http, another_secret])
@pytest.mark.parametrize("purpose", PURPOSES)
async def test_a_server_without_the_secret_gets_no_request(answer, purpose):
    protocol = Opened()
    async with squatter(answer) as (address, heard):
        with pytest.raises(Unavailable, match="did not prove the cluster's secret"):
            await connector().connect(address, purpose, protocol.wire)
        await asyncio.sleep(0)
    assert len(heard) == HELLO_BYTES
    assert protocol.count == 0


async def test_a_handshake_that_is_passed_on_to_a_real_server_proves_nothing():
    """A process on a freed port relays both ways, to sit between two members."""
    async with echoing() as (server, _):
        host, _, port = server.address.rpartition(":")

        async def relay(said):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(said)
            answer = await reader.readexactly(ANSWER_BYTES)
            writer.close()
            return answer

        protocol = Opened()
        async with squatter(relay) as (address, heard):
            with pytest.raises(Unavailable, match="did not prove"):
                await connector().connect(address, "calls", protocol.wire)
        assert len(heard) == HELLO_BYTES
        assert protocol.count == 0


async def test_a_server_that_says_nothing_delays_no_member_for_long():
    never = asyncio.Event()

    async def silence(said):
        await never.wait()
        return b""

    async with squatter(silence) as (address, _):
        with pytest.raises(Unavailable, match=r"no answer for 0\.1 s"):
            await connector().connect(address, "calls", Opened().wire, timeout_s=0.1)
        never.set()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1", "", "127.0.0.1:x", ":0"])
async def test_an_address_where_nobody_listens(address):
    with pytest.raises(Unavailable, match="no connection"):
        await connector().connect(address, "calls", Opened().wire)


async def test_a_certificate_that_cannot_be_read_is_no_connection():
    def broken():
        raise ConfigError("tls.internal: no certificate")

    async with echoing() as (server, _):
        with pytest.raises(Unavailable, match="no certificate"):
            await Connector(SECRET, broken).connect(server.address, "calls", Opened().wire)


async def test_a_cancelled_attempt_leaves_no_connection():
    async with echoing() as (server, heard):
        attempt = asyncio.create_task(connector().connect(server.address, "calls", Opened().wire))
        while not server.strangers:
            await asyncio.sleep(0)
        attempt.cancel()
        await asyncio.gather(attempt, return_exceptions=True)
        await eventually(lambda: server.strangers == 0)
        assert heard.refused in (["closed"], [])


async def test_a_stream_ends_for_both_when_either_leaves():
    async with echoing() as (server, _), stream_to(server.address) as stream:
        await stream.write(b"end")
        with pytest.raises(Unavailable, match="the connection ended"):
            await stream.read()


async def test_the_last_messages_arrive_although_the_peer_still_sends():
    async with echoing() as (server, _), stream_to(server.address) as stream:
        for number in range(100):
            stream.wire.send(b"%d" % number)
        stream.wire.send(b"end")
        for _ in range(100):
            stream.wire.send(b"late" * 1000)
        assert [await stream.read() for _ in range(100)] == [b"%d" % n for n in range(100)]


async def test_a_peer_that_floods_waits_until_its_messages_are_read():
    async with echoing() as (server, echo), stream_to(server.address) as stream:
        message = bytes(100_000)
        writing = asyncio.create_task(flood(stream, message, 400))
        # Nothing is read here, so the echo stops, and with it the writer.
        await eventually(lambda: len(echo.heard) > 5)
        for _ in range(50):
            await asyncio.sleep(0)
        assert not writing.done()
        for _ in range(400):
            assert await stream.read() == message
        await writing


async def flood(stream, message, count):
    for _ in range(count):
        await stream.write(message)


def test_the_event_loop_that_ray_gives_its_processes_does_it_too():
    run(strangers.test_members_speak_with_each_other("calls"))
    run(strangers.test_the_right_proof_is_taken_with_the_frame_behind_it())
