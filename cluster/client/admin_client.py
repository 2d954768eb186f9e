"""A client of a router's admin service: status, stop, rollout, the role of a replica, requests.

Each call carries an operator's key: the given one, or that of this user
(`cluster/tenants/operator_key.py`).
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import grpc.aio
from google.protobuf.message import Message

from cluster.tenants.operator_key import dialled, operator_key
from engine.errors import DeadlineExceeded
from protos import router_pb2, router_pb2_grpc
from tandem_client.router_address import Address, RouterAddress, open_channel
from tandem_client.rpc_errors import error_from_rpc

_TIMEOUT_S = 5.0


async def fetch_status(address: Address, key: str | None = None) -> router_pb2.StatusResponse:
    """Every replica that the router knows; raises a TandemError."""
    answer: router_pb2.StatusResponse = await _call(
        "Status", router_pb2.StatusRequest(), address, key
    )
    return answer


async def request_stop(address: Address, key: str | None = None) -> None:
    """Stop the cluster; raises Unavailable where `tandem serve` did not start it."""
    await _call("Stop", router_pb2.StopRequest(), address, key)


async def request_rollout(
    address: Address,
    configuration: str | None,
    *,
    weaken_security: bool = False,
    key: str | None = None,
) -> router_pb2.RolloutResponse:
    """Request a rollout of a configuration in JSON; returns its id, what it weakens, and notices.

    None is the running configuration, for a restart.
    Raises a TandemError: InvalidRequest where it weakens something without `weaken_security`.
    """
    request = router_pb2.RolloutRequest(
        configuration=configuration or "",
        weaken_security=weaken_security,
        restart=configuration is None,
    )
    answer: router_pb2.RolloutResponse = await _call("Rollout", request, address, key)
    return answer


async def request_role(address: Address, replica: str, role: str, key: str | None = None) -> str:
    """Give a replica another role; returns the role before. Raises a TandemError."""
    request = router_pb2.GiveRoleRequest(replica=replica, role=role)
    return str((await _call("GiveRole", request, address, key, 2 * _TIMEOUT_S)).before)


async def request_purge(
    address: Address, tenant: str, key: str | None = None
) -> router_pb2.PurgeResponse:
    """Purge a tenant's cached blocks on every replica; raises a TandemError."""
    request = router_pb2.PurgeRequest(tenant=tenant)
    answer: router_pb2.PurgeResponse = await _call("Purge", request, address, key, 2 * _TIMEOUT_S)
    return answer


async def list_requests(
    address: Address, wanted: router_pb2.ListRequestsRequest, key: str | None = None
) -> list[dict[str, Any]]:
    """The rows of requests that ended on that router, as plain data; raises a TandemError."""
    return (await list_with_rises(address, wanted, key))[0]


async def list_with_rises(
    address: Address, wanted: router_pb2.ListRequestsRequest, key: str | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """As `list_requests`, and where TTFT rose there, if that is asked for."""
    answer: router_pb2.ListRequestsResponse = await _call("ListRequests", wanted, address, key)
    return [json.loads(row) for row in answer.rows], [json.loads(one) for one in answer.rises]


def _as_number(address: Address) -> RouterAddress:
    """The address to call, see `dialled`; the certificate's name stays that of the host."""
    known = address if isinstance(address, RouterAddress) else RouterAddress.at(address)
    target = dialled(known.target)
    if target == known.target:
        return known
    return replace(known, target=target, name=known.name or known.target.rpartition(":")[0])


async def _call(
    method: str, request: Message, address: Address, key: str | None, timeout_s: float = _TIMEOUT_S
) -> Any:
    router = _as_number(address)
    key = operator_key(router.target) if key is None else key
    metadata = () if key is None else (("authorization", f"Bearer {key}"),)
    async with open_channel(router) as channel:
        call = getattr(router_pb2_grpc.AdminStub(channel), method)
        try:
            return await call(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                message = f"router at {router.target}: no answer within {timeout_s:g} s"
                raise DeadlineExceeded(message) from None
            raise error_from_rpc(error) from None
