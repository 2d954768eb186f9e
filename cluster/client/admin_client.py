"""A client of a router's admin service: status, stop, rollout, the role of a replica, requests.

Each call carries an operator's key: the given one, or that of this user
(`cluster/tenants/operator_key.py`).
"""

from __future__ import annotations

import asyncio
import json
from asyncio import FIRST_COMPLETED
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import grpc.aio
from google.protobuf.message import Message

from cluster.api.event_streams import end
from cluster.tenants.operator_key import dialled, operator_key
from engine.errors import DeadlineExceeded, TandemError, Unavailable
from protos import router_pb2, router_pb2_grpc
from tandem_client.router_address import Address, RouterAddress, open_channel
from tandem_client.rpc_errors import error_from_rpc

_TIMEOUT_S = 5.0
# A router answers within a second, in which it asks the others. So the last question has time, too.
_AGAIN_S, _MOST_ASKS = 1.5, 3
_OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


async def fetch_status(address: Address, key: str | None = None) -> router_pb2.StatusResponse:
    """Every replica that the router knows; raises a TandemError."""
    answer: router_pb2.StatusResponse = await _ask(
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
    """The rows of requests that ended on all routers, as plain data; raises a TandemError."""
    return (await fetch_requests([address], wanted, key)).rows


@dataclass(frozen=True, slots=True)
class ListedRequests:
    """Rows as plain data; where TTFT rose, and figures of endpoints and tenants, where asked for.

    `observed_s` are the seconds of these figures; 0 where the router does not tell. `silent` names
    the routers whose rows are missing, and says why.
    """

    rows: list[dict[str, Any]]
    rises: list[dict[str, Any]]
    silent: dict[str, str]
    figures: list[router_pb2.EndpointFigures]
    tenants: list[router_pb2.TenantFigures] = field(default_factory=list)
    observed_s: float = 0.0


async def fetch_requests(
    addresses: Sequence[Address], wanted: router_pb2.ListRequestsRequest, key: str | None = None
) -> ListedRequests:
    """The rows that these routers gather, each row once.

    Raises a TandemError; a router that does not answer is named where another one answers.
    """
    asked = (_ask("ListRequests", wanted, one, key) for one in addresses)
    found = await asyncio.gather(*asked, return_exceptions=True)
    failed = [one for one in found if isinstance(one, BaseException)]
    away = [one for one in failed if isinstance(one, Unavailable | DeadlineExceeded)]
    if failed and (len(failed) == len(found) or len(away) < len(failed)):
        raise failed[0]
    answers = [one for one in found if isinstance(one, router_pb2.ListRequestsResponse)]
    rows = [json.loads(row) for answer in answers for row in answer.rows]
    rises = [json.loads(one) for answer in answers for one in answer.rises]
    # Each answer is of all routers; one that missed some has fewer requests.
    most = max(answers, key=lambda one: sum(each.requests for each in one.figures))
    silent = {name: why for answer in answers for name, why in answer.silent.items()}
    silent |= {
        str(address): one.message
        for address, one in zip(addresses, found, strict=True)
        if isinstance(one, TandemError)
    }
    told = {row["router"] for row in rows if "router" in row}
    return ListedRequests(
        _once(rows, ("tenant", "request_id", "received_at")),
        _once(rises, ("endpoint",)),
        {name: why for name, why in silent.items() if name not in told},
        list(most.figures),
        list(most.tenants),
        most.observed_s,
    )


def _once(rows: list[dict[str, Any]], fields: Sequence[str]) -> list[dict[str, Any]]:
    """The rows that differ in these fields, because several routers tell of one request."""
    return list({tuple(row.get(name) for name in fields): row for row in rows}.values())


def _as_number(address: Address) -> RouterAddress:
    """The address to call, see `dialled`; the certificate's name stays that of the host."""
    known = address if isinstance(address, RouterAddress) else RouterAddress.at(address)
    target = dialled(known.target)
    if target == known.target:
        return known
    return replace(known, target=target, name=known.name or known.target.rpartition(":")[0])


async def _ask(method: str, request: Message, address: Address, key: str | None) -> Any:
    """The answer to a question that changes nothing.

    Routers of one host share a port, and a frozen one still takes connections there. So where no
    answer comes, the question is asked again on a new connection. What comes first counts.
    """
    asking = set[asyncio.Task[Any]]()
    try:
        for left in reversed(range(_MOST_ASKS)):
            asking.add(asyncio.create_task(_call(method, request, address, key)))
            wait_s = _AGAIN_S if left else None  # the first call ends within its own deadline
            done, _ = await asyncio.wait(asking, timeout=wait_s, return_when=FIRST_COMPLETED)
            if done:
                break
        return await done.pop()
    finally:
        await end(list(asking))


async def _call(
    method: str, request: Message, address: Address, key: str | None, timeout_s: float = _TIMEOUT_S
) -> Any:
    router = _as_number(address)
    key = operator_key(router.target) if key is None else key
    metadata = () if key is None else (("authorization", f"Bearer {key}"),)
    async with open_channel(router, _OWN_CONNECTION) as channel:
        call = getattr(router_pb2_grpc.AdminStub(channel), method)
        try:
            return await call(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                message = f"router at {router.target}: no answer within {timeout_s:g} s"
                raise DeadlineExceeded(message) from None
            raise error_from_rpc(error) from None
