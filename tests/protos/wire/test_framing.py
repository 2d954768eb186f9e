"""A proved connection: frames however they are cut, limits, silence."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import Internal
from protos.wire.framing import MOST_BYTES, SILENT_TICKS, Wire
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

    def __init__(self, tick_s=1000.0, **more):
        self.took: list[bytes] = []
        self.lost: list[str] = []
        self.wire = Wire(self.took.append, self.lost.append, tick_s=tick_s, **more)
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
        assert stream == framed(*messages)
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


@pytest.mark.parametrize("most", [MOST_BYTES, 100])
async def test_a_peer_that_sends_too_large_a_message_is_cut_off_before_it_comes(most):
    end = End(most_bytes=most)
    end.wire.data_received((most + 1).to_bytes(4, "big"))
    assert end.transport.aborted
    assert end.lost == [f"a message of {most + 1} bytes came, and {most} are the most"]
    assert not end.took
    end.wire.send(b"x")
    end.wire.close()
    assert not end.transport.written
    assert len(end.lost) == 1


def test_an_empty_message_cannot_be_sent():
    with pytest.raises(Internal):
        Wire(lambda message: None, lambda reason: None).send(b"")


async def test_an_end_that_leaves_takes_and_sends_nothing_more_and_waits_for_the_other():
    end = End()
    end.wire.send(b"last")
    end.wire.leave("over", 1000)
    end.wire.leave("over", 1000)
    end.wire.send(b"more")
    end.wire.data_received(framed(b"late"))
    assert end.transport.written == framed(b"last")
    assert not end.took
    assert not end.lost
    end.wire.connection_lost(None)
    assert end.lost == ["the connection ended"]


async def test_an_end_that_leaves_does_not_wait_for_ever():
    end = End()
    end.wire.leave("over", 0.01)
    await eventually(lambda: end.lost == ["over"])
    assert end.transport.aborted


async def test_nothing_is_taken_after_the_end():
    took: list[bytes] = []
    wire = Wire(lambda message: (took.append(message), wire.close()), lambda reason: None)
    wire.connection_made(Transport(wire))
    wire.data_received(framed(b"one", b"two"))
    assert took == [b"one"]


async def test_an_idle_end_says_that_it_lives_and_a_silent_one_is_cut_off():
    end = End(tick_s=0.01)
    await eventually(lambda: end.lost)
    assert "nothing was heard" in end.lost[0]
    assert end.transport.written == bytes(4 * SILENT_TICKS)


async def test_an_end_may_speak_more_often_than_it_gives_a_peer_up():
    end = End(tick_s=0.01, silent_ticks=5)
    await eventually(lambda: end.lost)
    assert end.lost == ["nothing was heard for 0.05 s"]
    assert end.transport.written == bytes(4 * 5)


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


async def test_what_is_heard_is_told_once_and_a_paused_side_cannot_tell():
    end = End()
    assert not end.wire.heard()
    end.wire.data_received(bytes(4))
    assert end.wire.heard() and not end.wire.heard()
