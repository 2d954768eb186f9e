"""A client of a router's admin service: status, stop, rollout, and the role of a replica."""

from __future__ import annotations

import grpc.aio

from cluster.api.error_mapping import error_from_rpc
from cluster.client.router_address import Address, open_channel
from protos import router_pb2, router_pb2_grpc

_TIMEOUT_S = 5.0


async def fetch_status(address: Address) -> router_pb2.StatusResponse:
    """Every replica that the router knows; raises a TandemError."""
    async with open_channel(address) as channel:
        stub = router_pb2_grpc.AdminStub(channel)
        try:
            answer: router_pb2.StatusResponse = await stub.Status(
                router_pb2.StatusRequest(), timeout=_TIMEOUT_S
            )
            return answer
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None


async def request_stop(address: Address) -> None:
    """Stop the cluster; raises Unavailable where `tandem serve` did not start it."""
    async with open_channel(address) as channel:
        stub = router_pb2_grpc.AdminStub(channel)
        try:
            await stub.Stop(router_pb2.StopRequest(), timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None


async def request_rollout(address: Address, configuration: str) -> str:
    """Request a rollout of a configuration in JSON; returns its id. Raises a TandemError."""
    async with open_channel(address) as channel:
        stub = router_pb2_grpc.AdminStub(channel)
        request = router_pb2.RolloutRequest(configuration=configuration)
        try:
            return str((await stub.Rollout(request, timeout=_TIMEOUT_S)).id)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None


async def request_role(address: Address, replica: str, role: str) -> str:
    """Give a replica another role; returns the role before. Raises a TandemError."""
    async with open_channel(address) as channel:
        stub = router_pb2_grpc.AdminStub(channel)
        request = router_pb2.GiveRoleRequest(replica=replica, role=role)
        try:
            answer = await stub.GiveRole(request, timeout=2 * _TIMEOUT_S)
            return str(answer.before)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None
