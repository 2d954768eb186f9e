"""A listening server with a secret, members and strangers on 127.0.0.1."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import get_args

from cluster.sockets import join, listening_socket
from protos.wire.client import Connector
from protos.wire.handshake import Purpose
from protos.wire.secret import ClusterSecret
from protos.wire.server import WireServer
from protos.wire.streams import FrameStream, StreamServer

HOST = "127.0.0.1"
SECRET = ClusterSecret(b"a secret that members know")
OTHER_SECRET = ClusterSecret(b"the secret of other members")
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
MOST_BYTES = 1 << 20


def connector(secret: ClusterSecret = SECRET) -> Connector:
    return Connector(secret)


@asynccontextmanager
async def listening(accepts, secret=SECRET, **more):
    """A WireServer on a free port."""
    server, sock = WireServer(secret, accepts, **more), listening_socket(HOST, 0)
    await server.start(sock, join(HOST, sock.getsockname()[1]))
    try:
        yield server
    finally:
        await server.stop()


class Echo:
    """Sends each message back, for every purpose; notes the messages that came."""

    def __init__(self):
        self.heard: list[bytes] = []
        self.refused: list[str] = []
        self.streams = StreamServer(self.serve, MOST_BYTES)

    async def serve(self, stream: FrameStream) -> None:
        while (message := await stream.read()) != b"end":
            self.heard.append(message)
            await stream.write(message)


@asynccontextmanager
async def echoing(**more):
    """A WireServer that echoes: (server, Echo)."""
    echo = Echo()
    accepts = dict.fromkeys(PURPOSES, echo.streams.accept)
    async with listening(accepts, refused=echo.refused.append, **more) as server:
        try:
            yield server, echo
        finally:
            await echo.streams.stop()


@asynccontextmanager
async def stream_to(address, purpose: Purpose = "control", secret=SECRET, timeout_s=5.0):
    """A proved stream; raises Unavailable."""
    stream = FrameStream(MOST_BYTES)
    await connector(secret).connect(address, purpose, stream.wire, timeout_s)
    try:
        yield stream
    finally:
        stream.close()
        await asyncio.wait_for(stream.ended(), 5)


@asynccontextmanager
async def raw(address):
    """A TCP connection without a handshake: (reader, writer)."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def all_of(reader, timeout_s=5.0) -> bytes:
    """Everything until the other side hangs up."""
    data = b""
    with suppress(ConnectionResetError):
        async with asyncio.timeout(timeout_s):
            while more := await reader.read(1 << 16):
                data += more
    return data
