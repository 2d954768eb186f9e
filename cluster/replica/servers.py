"""The port of a replica: calls, load reports, role changes and the control streams of KV links.

Only members of the cluster get beyond the proof of its secret.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Self

from cluster.rpc.load_reports_server import LoadReporter
from cluster.rpc.membership import Membership
from cluster.rpc.role_control import MOST_BYTES, ControlServer
from cluster.rpc.server import CallServer, Serve
from cluster.sockets import join, listening_socket
from kv_transfer.links.link_stream import MOST_LINK_BYTES
from kv_transfer.sender import KvSender
from protos.wire.server import WireServer
from protos.wire.streams import StreamServer

# A bound: a router sends no message to a replica that reports to it.
_MOST_REPORTS_BYTES = 64


class ReplicaServers:
    """The servers of one replica behind one free port; `address` is its host and port."""

    def __init__(
        self, membership: Membership, sock: socket.socket, address: str, calls: CallServer
    ) -> None:
        self.address = address
        self._membership = membership
        self._sock = sock
        self._calls = calls
        self._streams: list[StreamServer] = []
        self._wire: WireServer | None = None

    @classmethod
    def bind(cls, membership: Membership, host: str, serves: Mapping[str, Serve]) -> Self:
        """Take a free port of `host`; connections are answered from `start` on."""
        sock = listening_socket(host, 0)
        address = join(host, sock.getsockname()[1])
        return cls(membership, sock, address, CallServer(serves))

    async def start(self, control: ControlServer, reporter: LoadReporter, sender: KvSender) -> None:
        """Answer members of the cluster."""
        controls = StreamServer(control.serve, MOST_BYTES)
        reports = StreamServer(reporter.serve, _MOST_REPORTS_BYTES)
        links = StreamServer(sender.serve_link, MOST_LINK_BYTES)
        self._streams = [controls, reports, links]
        self._wire = self._membership.server(
            {
                "calls": self._calls.accept,
                "reports": reports.accept,
                "control": controls.accept,
                "link": links.accept,
            }
        )
        await self._wire.start(self._sock, self.address)

    @property
    def idle(self) -> bool:
        """Whether no call runs, and all events of calls have been sent."""
        return self._calls.idle

    async def stop(self) -> None:
        """Cancel the calls that run and close the port. Idempotent."""
        self._sock.close() if self._wire is None else await self._wire.stop()
        await self._calls.stop()
        for streams in self._streams:
            await streams.stop()
