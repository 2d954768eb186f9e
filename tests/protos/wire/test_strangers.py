"""Strangers at a member's port: they prove nothing, get nothing, and lock no member out."""

from __future__ import annotations

import asyncio
import logging
import tracemalloc
from contextlib import AsyncExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import Unavailable
from protos.wire import client as wire_client
from protos.wire import stranger as stranger_module
from protos.wire.handshake import (
    ANSWER_BYTES,
    HELLO_BYTES,
    NONCE_BYTES,
    PREFACE,
    Transcript,
    hello,
    new_nonce,
)
from protos.wire.stranger import ServerSide, Stranger
from tests.eventually import eventually
from tests.protos.wire.rig import (
    OTHER_SECRET,
    PURPOSES,
    SECRET,
    all_of,
    echoing,
    listening,
    raw,
    stream_to,
)

FRAME = (5).to_bytes(4, "big") + b"hello"


@pytest.fixture
def impatient(monkeypatch):
    """A short handshake, for strangers that say nothing."""
    monkeypatch.setattr(stranger_module, "HANDSHAKE_S", 0.2)


@pytest.mark.parametrize("purpose", PURPOSES)
async def test_members_speak_with_each_other(purpose):
    async with echoing() as (server, echo), stream_to(server.address, purpose) as stream:
        for message in (b"one", b"x" * 500_000, b"three"):
            await stream.write(message)
            assert await stream.read() == message
        assert server.strangers == 0
        assert not echo.refused


@pytest.mark.parametrize("purpose", PURPOSES)
async def test_a_member_of_another_cluster_is_told_apart_on_both_sides(purpose):
    async with echoing() as (server, echo):
        with pytest.raises(Unavailable, match="did not prove the cluster's secret"):
            async with stream_to(server.address, purpose, OTHER_SECRET):
                pass
        await eventually(lambda: echo.refused == ["closed"])
        assert not echo.heard


async def answered(reader, writer, purpose, nonce):
    """Say hello; returns the server's nonce and proof."""
    writer.write(hello(purpose, nonce))
    answer = await asyncio.wait_for(reader.readexactly(ANSWER_BYTES), 5)
    return answer[:NONCE_BYTES], answer[NONCE_BYTES:]


def another(purpose):
    return PURPOSES[PURPOSES.index(purpose) - 1]


def proof_of_another_secret(purpose, address, mine, theirs, proof):
    return Transcript(purpose, address, mine, theirs).proof(OTHER_SECRET, "client")


def proof_for_another_purpose(purpose, address, mine, theirs, proof):
    return Transcript(another(purpose), address, mine, theirs).proof(SECRET, "client")


def proof_for_another_address(purpose, address, mine, theirs, proof):
    return Transcript(purpose, "127.0.0.1:1", mine, theirs).proof(SECRET, "client")


def proof_with_old_nonces(purpose, address, mine, theirs, proof):
    return Transcript(purpose, address, mine, new_nonce()).proof(SECRET, "client")


def proof_sent_back(purpose, address, mine, theirs, proof):
    return proof


def nothing(purpose, address, mine, theirs, proof):
    return bytes(32)


@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize(
    "prove",
    [
        nothing,
        proof_sent_back,
        proof_of_another_secret,
        proof_for_another_purpose,
        proof_for_another_address,
        proof_with_old_nonces,
    ],
)
async def test_a_wrong_proof_is_answered_by_nothing(purpose, prove):
    async with echoing() as (server, echo), raw(server.address) as (reader, writer):
        mine = new_nonce()
        theirs, proof = await answered(reader, writer, purpose, mine)
        writer.write(prove(purpose, server.address, mine, theirs, proof) + FRAME)
        assert await all_of(reader) == b""
        assert echo.refused == ["secret"]
        assert not echo.heard


async def test_the_right_proof_is_taken_with_the_frame_behind_it():
    """The control of the test above."""
    async with echoing() as (server, _), raw(server.address) as (reader, writer):
        mine = new_nonce()
        theirs, _ = await answered(reader, writer, "control", mine)
        proof = Transcript("control", server.address, mine, theirs).proof(SECRET, "client")
        writer.write(proof + FRAME)
        assert await asyncio.wait_for(reader.readexactly(len(FRAME)), 5) == FRAME


async def test_a_recorded_handshake_proves_nothing_later(monkeypatch):
    recorded = []

    async with echoing() as (server, echo):
        nonce = new_nonce()
        monkeypatch.setattr(wire_client, "new_nonce", lambda: nonce)
        proof_of = Transcript.proof

        def noted(self, secret, side):
            recorded.append((side, proof_of(self, secret, side)))
            return recorded[-1][1]

        monkeypatch.setattr(Transcript, "proof", noted)
        async with stream_to(server.address) as stream:
            await stream.write(b"hello")
            assert await stream.read() == b"hello"
        sent = next(proof for side, proof in recorded if side == "client")
        async with raw(server.address) as (reader, writer):
            writer.write(hello("control", nonce))
            await asyncio.wait_for(reader.readexactly(ANSWER_BYTES), 5)
            writer.write(sent + FRAME)
            assert await all_of(reader) == b""
        assert echo.refused == ["secret"]
        assert echo.heard == [b"hello"]


async def test_a_nonce_that_is_sent_back_opens_nothing():
    """A stranger without the secret has the server prove the stranger's own challenge."""
    async with (
        echoing() as (server, echo),
        raw(server.address) as (reader, writer),
        raw(server.address) as (other_reader, other_writer),
    ):
        mine = new_nonce()
        theirs, _ = await answered(reader, writer, "control", mine)
        _, proof = await answered(other_reader, other_writer, "control", theirs)
        writer.write(proof + FRAME)
        assert await all_of(reader) == b""
        assert echo.refused == ["secret"]


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"tandem wire 2\n",
        b"tandem calls 1\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        PREFACE + b"\x00",
        PREFACE + b"\xff" + bytes(NONCE_BYTES),
        hello("calls", bytes(NONCE_BYTES)) + b"x",
        bytes(1 << 20),
    ],
)
async def test_another_protocol_gets_no_byte(sent):
    async with echoing() as (server, echo), raw(server.address) as (reader, writer):
        writer.write(sent)
        assert await all_of(reader) == b""
        assert echo.refused == ["preface"]


@pytest.mark.parametrize("said", [b"", PREFACE, hello("calls", bytes(NONCE_BYTES))[:-1]])
async def test_a_stranger_that_says_nothing_more_is_cut_off(impatient, said):
    async with echoing() as (server, echo), raw(server.address) as (reader, writer):
        writer.write(said)
        assert await all_of(reader) == b""
        assert echo.refused == ["timeout"]


async def test_a_stranger_that_does_not_prove_itself_is_cut_off(impatient):
    async with echoing() as (server, echo), raw(server.address) as (reader, writer):
        await answered(reader, writer, "link", new_nonce())
        assert await all_of(reader) == b""
        assert echo.refused == ["timeout"]
        assert server.strangers == 0


async def test_many_silent_strangers_lock_no_member_out():
    async with echoing(most_strangers=16) as (server, echo), AsyncExitStack() as strangers:
        for _ in range(40):
            await strangers.enter_async_context(raw(server.address))
        await eventually(lambda: echo.refused == ["too_many"] * 24)
        assert server.strangers == 16
        async with stream_to(server.address) as stream:
            await stream.write(b"a member")
            assert await stream.read() == b"a member"
        assert server.strangers == 15  # the member made one stranger go


async def test_a_member_that_is_there_stays_whatever_strangers_do():
    async with (
        echoing(most_strangers=4) as (server, _),
        stream_to(server.address) as stream,
        AsyncExitStack() as strangers,
    ):
        for _ in range(30):
            await strangers.enter_async_context(raw(server.address))
        await stream.write(b"a member")
        assert await stream.read() == b"a member"


async def test_refusals_are_logged_at_most_once_a_second_and_without_secrets(caplog):
    async with echoing() as (server, _):
        with caplog.at_level(logging.WARNING):
            for _ in range(20):
                async with raw(server.address) as (reader, writer):
                    writer.write(b"GET / HTTP/1.1\r\n\r\n")
                    await all_of(reader)
            await server.stop()
        lines = [
            record for record in caplog.records if record.message == "connections were refused"
        ]
        assert sum(line.preface for line in lines) == 20
        assert 1 <= len(lines) < 10
        assert lines[0].listener == "internal"
        assert lines[0].last_peer.startswith("127.0.0.1:")


async def test_a_stopped_server_cuts_strangers_off():
    async with echoing() as (server, echo), raw(server.address) as (reader, _):
        await eventually(lambda: server.strangers == 1)
        await server.stop()
        assert await all_of(reader) == b""
        assert server.strangers == 0
        assert not echo.refused


class FakeTransport(asyncio.Transport):
    """Takes an abort, and counts what is written."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.aborted = False

    def write(self, data):
        self.written += data

    def abort(self):
        self.aborted = True


class Desk:
    """The server's part for strangers without a server."""

    def __init__(self):
        self.proved = []
        self.reasons = []
        self.side = ServerSide(SECRET, "here:1", None, lambda *told: self.reasons.append(told[-1]))

    def stranger(self):
        met = Stranger(self.side, self.proved.append)
        transport = FakeTransport()
        met.connection_made(transport)
        return met, transport


CHUNKS = st.lists(
    st.one_of(
        st.binary(max_size=200),
        st.just(PREFACE),
        st.sampled_from([hello(purpose, bytes(NONCE_BYTES)) for purpose in PURPOSES]),
        st.just(PREFACE[:5]),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=150)
@given(CHUNKS)
def test_random_bytes_never_pass_and_are_never_kept(chunks):
    async def run():
        desk = Desk()
        met, transport = desk.stranger()
        for chunk in chunks:
            met.data_received(chunk)
            assert len(met._data) <= HELLO_BYTES
        assert not desk.proved
        assert len(transport.written) in (0, ANSWER_BYTES)
        met.connection_lost(None)
        assert len(desk.reasons) == 1
        assert not met._data

    asyncio.run(run())


async def test_bytes_of_strangers_leave_no_memory_behind():
    desk = Desk()

    def flood():
        for _ in range(300):
            met, _ = desk.stranger()
            met.data_received(hello("calls", new_nonce()))
            met.data_received(bytes(1 << 16))
        desk.reasons.clear()

    flood()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(3):
            flood()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 400_000
    assert peak - before < 2_000_000
    assert not desk.proved


async def test_a_server_without_a_purpose_refuses_even_members():
    refused = []
    async with (
        listening({}, refused=refused.append) as server,
        stream_to(server.address, "link") as stream,
    ):
        await asyncio.wait_for(stream.ended(), 5)
    assert refused == ["too_many"]
