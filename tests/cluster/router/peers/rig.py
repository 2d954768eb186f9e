"""Routers by script behind the port for other routers."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager

from cluster.replica_record import ReplicaRecord
from cluster.router.peers.peer_calls import MOST_QUESTION_BYTES, Peers
from protos.peer_pb2 import PeerQuestion
from protos.wire.streams import StreamServer
from tests.protos.wire.rig import SECRET, connector, listening


def record(name, address, generation=1):
    return ReplicaRecord(name, "router", "", generation, peer=address)


@asynccontextmanager
async def answering(serve, secret=SECRET):
    """The address of a router that serves each connection so."""
    streams = StreamServer(serve, MOST_QUESTION_BYTES)
    async with listening({"peer": streams.accept}, secret) as wire:
        try:
            yield wire.address
        finally:
            await streams.stop()


def saying(answer_to):
    """A router that answers each question with the bytes of `answer_to(question)`."""

    async def serve(stream):
        while True:
            question = PeerQuestion.FromString(await stream.read())
            await stream.write(answer_to(question).SerializeToString())

    return serve


@asynccontextmanager
async def peers_of(**serves):
    """The router `here`, and routers of these names beside it."""
    async with AsyncExitStack() as stack:
        records = [ReplicaRecord("decode-0", "decode", "", 1), record("here", "127.0.0.1:1")]
        for name, serve in serves.items():
            address = await stack.enter_async_context(answering(serve)) if serve else ""
            records.append(record(name, address))
        yield Peers("here", lambda: records, connector()), records
