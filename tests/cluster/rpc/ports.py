"""A member's port for calls, which tests start and stop as a replica does."""

from __future__ import annotations

from cluster.rpc.server import CallServer
from cluster.sockets import join, listening_socket
from protos.wire.server import WireServer
from tests.protos.wire.rig import HOST, SECRET


class CallPort:
    """A CallServer behind a port of its own."""

    def __init__(self, serves):
        self.calls = CallServer(serves)
        self.refused: list[str] = []
        self.wire = WireServer(SECRET, {"calls": self.calls.accept}, self.refused.append)

    async def start(self, port=0) -> str:
        sock = listening_socket(HOST, port)
        await self.wire.start(sock, join(HOST, sock.getsockname()[1]))
        return self.wire.address

    async def stop(self) -> None:
        await self.wire.stop()
        await self.calls.stop()

    @property
    def idle(self):
        return self.calls.idle

    @property
    def sessions(self):
        return self.calls.sessions
