"""Links between processes that do not share a secret: neither side learns or moves anything."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import TransferFailed
from kv_transfer.errors import LinkBroken
from kv_transfer.links import proto_convert as wire
from kv_transfer.links.link_stream import MOST_LINK_BYTES, LinkStream
from kv_transfer.receiver import KvReceiver, Peer
from kv_transfer.sender import OutgoingKv
from protos import kv_transfer_pb2 as pb
from protos.wire.client import Connector
from protos.wire.handshake import HELLO_BYTES
from protos.wire.secret import ClusterSecret
from protos.wire.streams import FrameStream
from tests.kv_transfer.rig import (
    CONNECTOR,
    HOST,
    QUICK,
    eventually,
    linked,
    make_cache,
    receiving,
    sending,
    serving_links,
    untouched,
)
from tests.protos.wire.rig import all_of, raw

OTHER = ClusterSecret(b"the secret of other members")


async def admit(offered):
    return [1], 1


async def test_a_receiver_of_another_cluster_gets_no_kv_and_ends_no_link():
    """It takes the name of a receiver that is linked, with a newer generation."""
    async with linked() as pair:
        await pair.move("before", [1, 2], [3, 4])
        cache = make_cache()
        strange = KvReceiver("d0", HOST, cache, QUICK, Connector(OTHER))
        offer = pair.offer("t", [5])
        with pytest.raises(LinkBroken, match="did not prove the cluster's secret"):
            await strange.receive(pair.peer, "t", admit, 5)
        assert untouched(cache)
        await strange.close()
        await pair.take("t", [6])
        await offer
        counters = pair.sender.counters
        assert (counters.links_opened, counters.links_failed, counters.links_refused) == (1, 0, 0)


async def test_a_sender_of_another_cluster_is_told_nothing_and_writes_nothing():
    """Whoever has taken the port of a sender that died hears no layout, identity or witness."""
    heard = bytearray()

    async def squat(reader, writer):
        heard.extend(await reader.read(1 << 16))
        writer.write(bytes(64))
        heard.extend(await all_of(reader))
        writer.close()

    server = await asyncio.start_server(squat, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    async with server, receiving() as (receiver, cache):
        with pytest.raises(TransferFailed, match="did not prove"):
            await receiver.receive(Peer("p0", f"{HOST}:{port}"), "t", admit, 5)
        assert untouched(cache)
        await eventually(lambda: len(heard) >= HELLO_BYTES)
    assert len(heard) == HELLO_BYTES


@pytest.mark.parametrize("said", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes(5000)])
async def test_a_stranger_on_a_senders_port_hears_nothing(said):
    async with sending() as side, raw(side.peer.address) as (reader, writer):
        offer = asyncio.create_task(side.sender.hand_over(OutgoingKv("t", "d0", (1,), 5, 5), 5))
        writer.write(said)
        writer.write_eof()
        assert await all_of(reader) == b""
        assert side.sender.counters.links_refused == 0
        offer.cancel()
        await asyncio.gather(offer, return_exceptions=True)


async def test_a_member_that_says_something_else_than_hello_gets_no_answer():
    async with sending() as side:
        for message in (wire.to_sender(joined=pb.Joined()), wire.to_sender(end=pb.LinkEnd())):
            stream = FrameStream(MOST_LINK_BYTES)
            messages = LinkStream(stream, pb.SenderMessage, pb.ReceiverMessage)
            await CONNECTOR.connect(side.peer.address, "link", stream.wire)
            await messages.write(message)
            assert await asyncio.wait_for(stream.ended(), 60) == "the connection ended"


@pytest.mark.parametrize("said", [b"\xff\xff\xff", bytes(MOST_LINK_BYTES + 1)])
async def test_messages_that_cannot_be_read_break_the_link(said):
    async def garble(stream):
        await stream.read()
        await stream.write(said)
        await stream.ended()

    async with serving_links(garble) as server, receiving() as (receiver, cache):
        with pytest.raises(LinkBroken, match=r"cannot be read|are the most"):
            await receiver.receive(Peer("p0", server.address), "t", admit, 5)
        assert untouched(cache)


async def test_a_member_that_floods_a_link_ends_it_alone():
    """Offers that nobody waits for are forgotten; the flood is read as fast as it is handled."""
    async with sending() as side:
        stream = FrameStream(MOST_LINK_BYTES)
        await CONNECTOR.connect(side.peer.address, "link", stream.wire)
        hello = wire.to_sender(hello=pb.Hello(receiver="d0", layout=pb.Layout()))
        await stream.write(hello.SerializeToString())
        noise = wire.to_sender(heartbeat=pb.Heartbeat()).SerializeToString()
        for _ in range(2000):
            stream.wire.send(noise)
        await asyncio.wait_for(stream.ended(), 60)
        assert side.sender.counters.links_refused == 1
