"""The port at which a router answers the other routers.

The ports of the front ends do not do: the routers of a host share them, and a connection reaches
any of these routers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Self

from cluster.router.peers.peer_calls import MOST_QUESTION_BYTES
from cluster.rpc.membership import Membership
from cluster.sockets import join, listening_socket
from protos.wire.server import WireServer
from protos.wire.streams import FrameStream, StreamServer


class PeerPort:
    """A free port that listens; `address` is its host and port."""

    def __init__(self, address: str, wire: WireServer, streams: StreamServer) -> None:
        self.address = address
        self._wire = wire
        self._streams = streams

    @classmethod
    async def open(
        cls, membership: Membership, serve: Callable[[FrameStream], Awaitable[None]], host: str
    ) -> Self:
        """Serve members of the cluster on a free port of `host`; raises ConfigError."""
        streams = StreamServer(serve, MOST_QUESTION_BYTES)
        wire = membership.server({"peer": streams.accept})
        sock = listening_socket(host, 0)
        address = join(host, sock.getsockname()[1])
        await wire.start(sock, address)
        return cls(address, wire, streams)

    async def close(self) -> None:
        """Close the port and its connections. Idempotent."""
        await self._wire.stop()
        await self._streams.stop()
