"""Requests to a replica: answered for members of the cluster alone, and within bounds."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from cluster.replica_record import ReplicaRecord
from cluster.rpc import role_control
from cluster.rpc.role_control import (
    MOST_BYTES,
    ControlServer,
    request_end,
    request_purge,
    request_role,
)
from engine.errors import InvalidRequest, NotFound, TandemError, Unavailable
from protos.replica_pb2 import ControlAnswer, ControlRequest
from protos.wire.streams import StreamServer
from tests.protos.wire.rig import OTHER_SECRET, connector, listening, stream_to


class Roles:
    """A replica's role; `error` is raised instead of a change."""

    def __init__(self):
        self.taken: list[str] = []
        self.error: Exception | None = None

    async def take(self, role):
        if self.error is not None:
            raise self.error
        self.taken.append(role)
        return "decode"

    def purge(self, tenant):
        if self.error is not None:
            raise self.error
        self.taken.append(tenant)
        return 3

    def end(self, replica, at_once):
        self.taken += [replica, "kill" if at_once else "drain"]


@asynccontextmanager
async def controlled(serve=None):
    """A replica: (its roles, its record)."""
    roles = Roles()
    control = ControlServer(roles.take, roles.purge, roles.end)
    streams = StreamServer(serve or control.serve, MOST_BYTES)
    async with listening({"control": streams.accept}) as wire:
        try:
            yield roles, ReplicaRecord("r0", "decode", wire.address, 1)
        finally:
            await streams.stop()


async def test_a_member_changes_a_role():
    async with controlled() as (roles, record):
        assert await request_role(connector(), record, "prefill") == "decode"
        assert roles.taken == ["prefill"]


@pytest.mark.parametrize("how", ["kill", "drain"])
async def test_a_member_ends_a_replica(how):
    async with controlled() as (roles, record):
        await request_end(connector(), record, at_once=how == "kill")
        assert roles.taken == ["r0", how]


async def test_a_member_purges_a_tenant():
    async with controlled() as (roles, record):
        assert await request_purge(connector(), record, "acme") == 3
        assert roles.taken == ["acme"]


async def test_a_stranger_changes_no_role_and_learns_nothing():
    async with controlled() as (roles, record):
        with pytest.raises(Unavailable, match="did not prove the cluster's secret"):
            await request_purge(connector(OTHER_SECRET), record, "acme")
        with pytest.raises(Unavailable, match="did not prove the cluster's secret"):
            await request_role(connector(OTHER_SECRET), record, "prefill")
        assert not roles.taken


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (NotFound("no such role"), NotFound, "no such role"),
        (RuntimeError("a path"), TandemError, "internal error: RuntimeError"),
    ],
)
async def test_a_failure_arrives_as_what_was_raised(error, kind, told):
    async with controlled() as (roles, record):
        roles.error = error
        with pytest.raises(kind) as raised:
            await request_role(connector(), record, "prefill")
        assert raised.value.message == told


@pytest.mark.parametrize(
    ("request_bytes", "problem"),
    [
        (ControlRequest(take_role={"role": "router"}).SerializeToString(), "no role"),
        (b"\x7a\x00", "does not know"),
        (b"\xff\xff", "cannot be read"),
    ],
)
async def test_a_request_that_cannot_be_carried_out_is_refused(request_bytes, problem):
    async with controlled() as (roles, record), stream_to(record.address) as stream:
        await stream.write(request_bytes)
        answer = ControlAnswer.FromString(await stream.read())
        assert answer.failure.kind == InvalidRequest.__name__
        assert problem in answer.failure.message
        assert not roles.taken


async def test_a_replica_that_does_not_answer_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(role_control, "_TIMEOUT_S", 0.2)
    async with controlled(lambda stream: stream.ended()) as (_, record):
        with pytest.raises(Unavailable, match="did not answer"):
            await request_role(connector(), record, "prefill")


@pytest.mark.parametrize("said", [b"\xff\xff", bytes(MOST_BYTES + 1)])
async def test_an_answer_that_cannot_be_read_is_a_failure(said):
    async def garble(stream):
        await stream.read()
        await stream.write(said)
        await asyncio.wait_for(stream.ended(), 5)

    async with controlled(garble) as (_, record):
        with pytest.raises(Unavailable):
            await request_role(connector(), record, "prefill")
