"""Changes the role of a replica while the replica runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, get_args

import grpc.aio

from cluster.api.error_mapping import error_from_rpc
from cluster.replica_record import Pool, ReplicaRecord, ReplicaRole
from engine.errors import InvalidRequest, NotFound
from protos import replica_pb2, replica_pb2_grpc
from protos.channel import DIRECT
from protos.status import answers_errors

WORKING_ROLES: tuple[ReplicaRole, ...] = (*get_args(Pool), "both")
_TIMEOUT_S = 5.0

TakeRole = Callable[[ReplicaRole], Awaitable[ReplicaRole]]


class ControlServicer(replica_pb2_grpc.ControlServicer):
    """Takes role changes in a replica; `take_role` returns the role before."""

    def __init__(self, take_role: TakeRole) -> None:
        self._take_role = take_role

    @answers_errors
    async def TakeRole(  # noqa: N802
        self, request: replica_pb2.TakeRoleRequest, context: Any
    ) -> replica_pb2.TakeRoleResponse:
        """Change the role while work goes on; InvalidRequest for an unknown role."""
        before = await self._take_role(working_role(request.role))
        return replica_pb2.TakeRoleResponse(before=before)


def working_role(name: str) -> ReplicaRole:
    """The working role of that name; raises InvalidRequest if it is none."""
    for role in WORKING_ROLES:
        if role == name:
            return role
    raise InvalidRequest(f"no role {name!r}; {', '.join(WORKING_ROLES)} are", field="role")


def check_flip(members: list[ReplicaRecord], replica_id: str, role: ReplicaRole) -> ReplicaRecord:
    """The replica that is to take a role; NotFound, or InvalidRequest where a pool would be empty.

    `members` are the replicas that take work now.
    """
    found = next((record for record in members if record.id == replica_id), None)
    if found is None or found.role not in WORKING_ROLES:
        ids = ", ".join(sorted(one.id for one in members if one.role in WORKING_ROLES))
        message = f"no replica {replica_id!r} that takes work; {ids or 'none'} does"
        raise NotFound(message, field="replica")
    roles = [role if record is found else record.role for record in members]
    for pool in get_args(Pool):
        if pool not in roles and "both" not in roles:
            raise InvalidRequest(f"nobody would take {pool} work any more", field="role")
    return found


async def request_role(record: ReplicaRecord, role: ReplicaRole) -> str:
    """Give a replica a role; returns the role before. Raises a TandemError."""
    async with grpc.aio.insecure_channel(record.address, options=[DIRECT]) as channel:
        stub = replica_pb2_grpc.ControlStub(channel)
        try:
            answer = await stub.TakeRole(replica_pb2.TakeRoleRequest(role=role), timeout=_TIMEOUT_S)
            return str(answer.before)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None
