"""Rollouts as the launcher carries them out, without Ray, and calls of an operator."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from cluster.config.deployment import DirectoryConfig
from cluster.config.router import RouterConfig
from cluster.config.schema import TandemConfig
from cluster.config.security import SecurityConfig
from cluster.config.version import config_version
from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.discovery.redis_directory import Directory
from cluster.discovery.request_seal import RequestSeal
from cluster.discovery.rollout import (
    RolloutRequest,
    Rollouts,
    RolloutState,
    document_of,
)
from cluster.gateway.grpc_methods import Received
from cluster.router.admin_service import AdminServicer
from cluster.router.canary.routing import CanaryRouting
from cluster.router.console.parts import KnownCluster
from cluster.router.peers.peer_calls import Peers
from cluster.router.rows.gathered_rows import GatheredRows
from cluster.rpc.membership import Membership
from cluster.telemetry.requests.store import RequestStore
from cluster.tenants.api_keys import ApiKeys
from decode_pool.config import DecodeConfig
from tests.cluster.discovery.members import SECRET
from tests.cluster.discovery.test_version_handover import Roster, record

RUNNING = TandemConfig(
    directory=DirectoryConfig(url="unix:///x"),
    router=RouterConfig(grpc_port=4711),
    security=SecurityConfig("/run/secret"),
)

OTHER = TandemConfig(decode=DecodeConfig(max_batch=7))

SEAL = RequestSeal(SECRET, "launcher")


class Serve:
    """What would put replicas on a cluster: here they are in the directory at once, or never."""

    def __init__(self, directory: Directory, *, fails: str | None = None) -> None:
        self.begun: list[TandemConfig] = []
        self._directory = directory
        self._fails = fails
        self._loop = asyncio.get_running_loop()

    def begin(self, config: TandemConfig) -> None:
        self.begun.append(config)
        if self._fails is None:
            asyncio.run_coroutine_threadsafe(self.appear(config), self._loop).result(10)

    def failure(self) -> str | None:
        return self._fails

    async def appear(self, config: TandemConfig) -> None:
        for role in ("prefill", "decode", "router"):
            one = replace(record(role, role), config=config_version(config))
            await self._directory.register(one)


async def rolled_out(directory, serve, config, prepare=lambda config: config):
    lines = []
    rollouts = Rollouts(RUNNING, serve, prepare, lines.append, SEAL)
    await directory.listen_for_stop(SEAL.launcher)
    if isinstance(config, TandemConfig):
        config = document_of(config)
    request = RolloutRequest("id", config) if isinstance(config, str) else config
    request = request.sealed(SEAL)
    assert await directory.request_rollout(request.to_json(), RolloutState("id").to_json())
    await rollouts.poll(directory)
    await rollouts.poll(directory)  # once only
    state = RolloutState.from_json(await directory.rollout_state())
    return rollouts, state, lines


def received(message):
    """The message as a server hands it over."""
    return Received(type(message), message.SerializeToString())


class Aborted(Exception):
    """What a call ends with."""


class Anybody(ApiKeys):
    """Everybody is an operator."""

    def operator(self, authorization):
        return "anybody"


class Context:
    """A gRPC call, as far as a servicer needs it."""

    def invocation_metadata(self):
        return ()

    async def abort(self, code, details="", trailing_metadata=()):
        raise Aborted(details)


def admin_of(directory, running=RUNNING):
    """The router's methods for operators, without a key."""
    roster = HealthyReplicas(Roster())
    membership = Membership(SECRET)
    peers = Peers("", list, membership.connector())
    known = KnownCluster(roster, directory, membership, roster.latest, peers)
    rows = GatheredRows(RequestStore(), peers)
    return AdminServicer(running, known, Anybody({}), CanaryRouting({}), no_streams, rows)


async def no_streams(tenant):
    return 0
