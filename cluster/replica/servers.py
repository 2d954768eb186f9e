"""The two servers of a replica: one for the calls of routers, and a gRPC server beside it.

The gRPC server answers load reports and role changes, and carries the control streams of KV links.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import grpc.aio

from cluster.rpc.load_reports_server import ReportServicer
from cluster.rpc.role_control import ControlServicer
from cluster.rpc.server import CallServer, Serve, new_server
from cluster.sockets import join
from kv_transfer.sender import KvSender
from protos import replica_pb2_grpc, report_pb2_grpc


class ReplicaServers:
    """Both servers of one replica, each on a free port.

    `address` is that of the gRPC server, `calls_address` that of the server for calls.
    """

    def __init__(
        self, server: grpc.aio.Server, address: str, calls: CallServer, calls_address: str
    ) -> None:
        self.address = address
        self.calls_address = calls_address
        self._server = server
        self._calls = calls

    @classmethod
    async def bind(cls, host: str, serves: Mapping[str, Serve], sender: KvSender) -> Self:
        """Take two free ports of `host`; the gRPC server answers from `start` on."""
        server, calls = new_server(), CallServer(serves)
        sender.add_to(server)
        address = join(host, server.add_insecure_port(join(host, 0)))
        return cls(server, address, calls, await calls.start(host))

    async def start(self, control: ControlServicer, reports: ReportServicer) -> None:
        """Answer role changes and load reports, too."""
        replica_pb2_grpc.add_ControlServicer_to_server(control, self._server)
        report_pb2_grpc.add_ReportsServicer_to_server(reports, self._server)
        await self._server.start()

    @property
    def idle(self) -> bool:
        """Whether no call runs, and all events of calls have been sent."""
        return self._calls.idle

    async def stop(self) -> None:
        """Cancel the calls that run and close both ports. Idempotent."""
        await self._calls.stop()
        await self._server.stop(0)
