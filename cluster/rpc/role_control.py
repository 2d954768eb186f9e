"""Requests to a running replica: changes of its role, purges of cached blocks, and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import get_args

from google.protobuf.message import DecodeError

from cluster.api.error_mapping import error_from_failure
from cluster.replica_record import Pool, ReplicaRecord, ReplicaRole
from engine.errors import Internal, InvalidRequest, NotFound, TandemError, Unavailable
from protos.replica_pb2 import (
    ControlAnswer,
    ControlRequest,
    Ending,
    EndProcess,
    PurgedBlocks,
    PurgeTenant,
    TakeRoleRequest,
    TakeRoleResponse,
)
from protos.status import failure_to_proto
from protos.wire.client import Connector
from protos.wire.streams import FrameStream

log = logging.getLogger(__name__)

WORKING_ROLES: tuple[ReplicaRole, ...] = (*get_args(Pool), "both")
_TIMEOUT_S = 5.0
# A bound: a request is a word, and an answer a word or a line.
MOST_BYTES = 1 << 16

TakeRole = Callable[[ReplicaRole], Awaitable[ReplicaRole]]
Purge = Callable[[str], int]
EndsProcess = Callable[[str, bool], None]


class ControlServer:
    """Answers the requests to a replica.

    `take_role` returns the role before, and `purge` the number of a tenant's cached blocks.
    `end_process` ends the process of the named replica soon, at once or after its work.
    """

    def __init__(self, take_role: TakeRole, purge: Purge, end_process: EndsProcess) -> None:
        self._take_role = take_role
        self._purge = purge
        self._end_process = end_process

    async def serve(self, stream: FrameStream) -> None:
        """Answer one request."""
        try:
            request = ControlRequest.FromString(await stream.read())
            answer = await self._answer(request)
        except DecodeError:
            answer = _failed(InvalidRequest("a request that cannot be read"))
        except TandemError as error:
            answer = _failed(error)
        except Exception as error:
            log.exception("a fault in a request to this replica")
            answer = _failed(Internal(f"internal error: {type(error).__name__}"))
        await stream.write(answer.SerializeToString())

    async def _answer(self, request: ControlRequest) -> ControlAnswer:
        """Carry out the request; raises a TandemError."""
        command = request.WhichOneof("command")
        if command == "purge":
            return ControlAnswer(purged=PurgedBlocks(blocks=self._purge(request.purge.tenant)))
        if command == "end":
            self._end_process(request.end.replica, request.end.at_once)
            return ControlAnswer(ending=Ending())
        if command != "take_role":
            raise InvalidRequest("this replica does not know the request")
        before = await self._take_role(working_role(request.take_role.role))
        return ControlAnswer(took_role=TakeRoleResponse(before=before))


def _failed(error: TandemError) -> ControlAnswer:
    return ControlAnswer(failure=failure_to_proto(error))


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


async def request_role(connector: Connector, record: ReplicaRecord, role: ReplicaRole) -> str:
    """Give a replica a role; returns the role before. Raises a TandemError."""
    request = ControlRequest(take_role=TakeRoleRequest(role=role))
    return str((await request_control(connector, record, request)).took_role.before)


async def request_purge(connector: Connector, record: ReplicaRecord, tenant: str) -> int:
    """Purge a tenant's cached blocks; returns their number. Raises a TandemError."""
    request = ControlRequest(purge=PurgeTenant(tenant=tenant))
    return int((await request_control(connector, record, request)).purged.blocks)


async def request_end(connector: Connector, record: ReplicaRecord, *, at_once: bool) -> None:
    """Have a replica's process end, at once or after its work. Raises a TandemError."""
    request = ControlRequest(end=EndProcess(replica=record.id, at_once=at_once))
    await request_control(connector, record, request)


async def request_control(
    connector: Connector, record: ReplicaRecord, request: ControlRequest
) -> ControlAnswer:
    """The replica's answer to a request. Raises a TandemError, also after 5 s."""
    stream = FrameStream(MOST_BYTES)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await connector.connect(record.address, "control", stream.wire)
            await stream.write(request.SerializeToString())
            answer = ControlAnswer.FromString(await stream.read())
    except TimeoutError:
        raise Unavailable(f"{record.id} did not answer for {_TIMEOUT_S:g} s") from None
    except DecodeError:
        raise Unavailable(f"{record.id} gave an answer that cannot be read") from None
    finally:
        stream.close()
    if answer.HasField("failure"):
        raise error_from_failure(answer.failure)
    return answer
