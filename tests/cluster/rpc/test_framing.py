"""The connection between a router and a replica: frames however they are cut, limits, silence."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.rpc.framing import MOST_BYTES, PREFACE, SILENT_TICKS, Wire
from cluster.rpc.server import CallServer
from tests.eventually import eventually


class Transport(asyncio.Transport):
    """Keeps what is written; an abort is told at once."""

    def __init__(self, wire):
        super().__init__()
        self.wire = wire
        self.written = b""
        self.aborted = False

    def write(self, data):
        self.written += data

    def abort(self):
        self.aborted = True
        self.wire.connection_lost(None)


class End:
    """One end over such a transport, and what it was told."""

    def __init__(self, tick_s=1000.0):
        self.took: list[bytes] = []
        self.lost: list[str] = []
        self.wire = Wire(self.took.append, self.lost.append, tick_s=tick_s)
        self.transport = Transport(self.wire)
        self.wire.connection_made(self.transport)


def framed(*messages: bytes) -> bytes:
    return b"".join(len(one).to_bytes(4, "big") + one for one in messages)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.binary(min_size=1, max_size=200), max_size=8), st.data())
def test_messages_arrive_whole_and_in_order_however_they_are_cut(messages, data):
    async def run():
        sender, end = End(), End()
        for message in messages:
            sender.wire.send(message)
        stream = sender.transport.written
        assert stream == PREFACE + framed(*messages)
        # Signs of life in between are no messages.
        stream += bytes(4)
        while stream:
            cut = data.draw(st.integers(1, len(stream)))
            end.wire.data_received(stream[:cut])
            stream = stream[cut:]
        assert end.took == messages
        assert not end.lost
        for one in (sender, end):
            one.wire.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "something else"),
        (b"tandem calls 9\n", "another version"),
        (PREFACE + (MOST_BYTES + 1).to_bytes(4, "big"), "the most"),
    ],
)
async def test_a_peer_that_speaks_something_else_is_cut_off(sent, reason):
    end = End()
    end.wire.data_received(sent)
    assert end.transport.aborted
    assert len(end.lost) == 1
    assert reason in end.lost[0]
    assert not end.took
    end.wire.send(b"x")
    end.wire.close()
    assert end.transport.written == PREFACE
    assert len(end.lost) == 1


async def test_nothing_is_taken_after_the_end():
    took: list[bytes] = []
    wire = Wire(lambda message: (took.append(message), wire.close()), lambda reason: None)
    wire.connection_made(Transport(wire))
    wire.data_received(PREFACE + framed(b"one", b"two"))
    assert took == [b"one"]


async def test_an_idle_end_says_that_it_lives_and_a_silent_one_is_cut_off():
    end = End(tick_s=0.01)
    await eventually(lambda: end.lost)
    assert "nothing was heard" in end.lost[0]
    assert end.transport.written == PREFACE + bytes(4 * SILENT_TICKS)


async def test_a_peer_is_not_silent_while_this_side_reads_nothing():
    end = End(tick_s=0.01)
    end.transport.pause_reading = lambda: None
    end.transport.resume_reading = lambda: None
    end.wire.pause()
    end.wire.pause()
    clock = End(tick_s=0.01)
    await eventually(lambda: clock.lost)
    assert not end.lost
    end.wire.resume()
    await eventually(lambda: end.lost)


async def test_a_sender_waits_while_the_other_side_takes_nothing():
    end = End()
    await end.wire.drained()
    end.wire.pause_writing()
    waiting = asyncio.create_task(end.wire.drained())
    await asyncio.sleep(0)
    assert not waiting.done()
    end.wire.resume_writing()
    await waiting
    end.wire.pause_writing()
    waiting = asyncio.create_task(end.wire.drained())
    end.wire.connection_lost(OSError("reset"))
    await waiting
    assert end.lost == ["the connection broke: reset"]


@asynccontextmanager
async def connection(server: CallServer):
    host, _, port = (await server.start("127.0.0.1")).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        await server.stop()


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", PREFACE + framed(b"\xff\xff\xff")])
async def test_a_replica_hangs_up_on_what_it_cannot_read(sent):
    server = CallServer({})
    async with connection(server) as (reader, writer):
        writer.write(sent)
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 5) in (PREFACE, b"")
        await eventually(lambda: not server.sessions)
