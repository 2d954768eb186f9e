"""The admin service of a router, for `tandem status`, `role`, `rollout` and `stop`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.discovery.redis_directory import Directory
from cluster.discovery.rollout import UNDER_WAY, RolloutRequest, RolloutState
from cluster.replica_record import Pool, ReplicaRecord, ReplicaRole
from cluster.router.canary_routing import CanaryRouting, CanaryState
from cluster.rpc.role_control import check_flip, request_role, working_role
from engine.errors import Unauthenticated, Unavailable
from protos import router_pb2, router_pb2_grpc
from protos.status import answers_errors

# How long a new role may take to be seen here, and the poll interval meanwhile.
_SEEN_S = 3.0
_POLL_S = 0.02
# The names that gRPC gives callers on this host.
_HERE = ("ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D", "unix:")


class AdminServicer(router_pb2_grpc.AdminServicer):
    """Answers from the router's copy of the directory.

    `latest` adds the newest load to a record, because the directory learns of it once a second.
    Where it is `guarded`, only calls from the router's own host may change anything; others get
    Unauthenticated.
    """

    def __init__(
        self,
        pools: HealthyReplicas,
        directory: Directory,
        desired: Mapping[Pool, int],
        canaries: CanaryRouting | None = None,
        config: str = "",
        *,
        guarded: bool = False,
        latest: Callable[[ReplicaRecord], ReplicaRecord] | None = None,
    ) -> None:
        self._latest = latest or pools.latest
        self._config = config
        self._guarded = guarded
        self._pools = pools
        self._canaries = canaries or CanaryRouting({})
        self._desired = desired
        self._directory = directory
        self._flipping = asyncio.Lock()

    @answers_errors
    async def Status(  # noqa: N802
        self, request: router_pb2.StatusRequest, context: Any
    ) -> router_pb2.StatusResponse:
        """Every replica as last reported, and the pools with too few replicas."""
        replicas = [self._describe(self._latest(record)) for record in self._pools.members()]
        canaries = [_canary(state) for state in self._canaries.states()]
        return router_pb2.StatusResponse(
            replicas=replicas,
            missing=self._shortfalls(),
            canaries=canaries,
            config=self._config,
            rollout=await self._shown_rollout(),
        )

    @answers_errors
    async def Stop(  # noqa: N802
        self, request: router_pb2.StopRequest, context: Any
    ) -> router_pb2.StopResponse:
        """Have the launcher end the cluster; Unavailable where no launcher listens."""
        self._check(context)
        if not await self._directory.request_stop():
            raise Unavailable("this cluster was not started by `tandem serve`; stop it in Ray")
        return router_pb2.StopResponse()

    @answers_errors
    async def Rollout(  # noqa: N802
        self, request: router_pb2.RolloutRequest, context: Any
    ) -> router_pb2.RolloutResponse:
        """Have the launcher begin a rollout; Unavailable if none listens, or a rollout goes on."""
        self._check(context)
        last = await self._last_rollout()
        if last is not None and last.state in UNDER_WAY:
            raise Unavailable("another rollout is under way; ask again when it has ended")
        state = RolloutState(secrets.token_hex(8))
        rollout = RolloutRequest(state.id, request.configuration)
        if not await self._directory.request_rollout(rollout.to_json(), state.to_json()):
            raise Unavailable("this cluster was not started by `tandem serve`; use `serve deploy`")
        return router_pb2.RolloutResponse(id=state.id)

    @answers_errors
    async def GiveRole(  # noqa: N802
        self, request: router_pb2.GiveRoleRequest, context: Any
    ) -> router_pb2.GiveRoleResponse:
        """Give a replica another role; NotFound, or InvalidRequest where that cannot be.

        Changes one role at a time, and answers when this router uses the new role.
        """
        self._check(context)
        role = working_role(request.role)
        async with self._flipping:
            members = [record for record in self._pools.members() if self._pools.trusted(record)]
            replica = check_flip(members, request.replica, role)
            before = await request_role(replica, role)
            with suppress(TimeoutError):
                async with asyncio.timeout(_SEEN_S):
                    while not self._has_role(replica, role):  # noqa: ASYNC110 - read by polling too
                        await asyncio.sleep(_POLL_S)
        return router_pb2.GiveRoleResponse(before=before)

    def _check(self, context: Any) -> None:
        if self._guarded and not context.peer().startswith(_HERE):
            raise Unauthenticated("with API keys this is asked for on the router's own host only")

    async def _last_rollout(self) -> RolloutState | None:
        text = await self._directory.rollout_state()
        try:
            return RolloutState.from_json(text) if text else None
        except ValueError:
            return None

    async def _shown_rollout(self) -> router_pb2.RolloutStatus | None:
        try:
            state = await self._last_rollout()
        except Unavailable:
            return None
        return router_pb2.RolloutStatus(**asdict(state)) if state else None

    def _has_role(self, replica: ReplicaRecord, role: ReplicaRole) -> bool:
        found = (record for record in self._pools.members() if record.id == replica.id)
        return all(record.role == role for record in found)

    def _shortfalls(self) -> list[str]:
        have = {pool: len(self._pools.healthy(pool)) for pool in self._desired}
        return [
            f"{pool} ({have[pool]} of {desired})"
            for pool, desired in self._desired.items()
            if have[pool] < desired
        ]

    def _describe(self, record: ReplicaRecord) -> router_pb2.ReplicaStatus:
        load = record.load
        return router_pb2.ReplicaStatus(
            id=record.id,
            role=record.role,
            address=record.address,
            healthy=self._pools.trusted(record),
            waiting=load.waiting,
            running=load.running,
            start_s=record.start_s,
            leaving=record.leaving,
            config=record.config,
            blocks=router_pb2.BlockCounts(
                total=load.blocks_total,
                used=load.blocks_used,
                cached=load.blocks_cached,
                leased=load.blocks_leased,
                quarantined=load.blocks_quarantined,
                orphaned=load.blocks_orphaned,
            ),
        )


def _canary(state: CanaryState) -> router_pb2.CanaryStatus:
    arms = {"stable": state.stable, "canary": state.canary}
    return router_pb2.CanaryStatus(
        endpoint=state.endpoint,
        served_as=state.served_as,
        share=state.share,
        rolled_back=state.reason,
        arms=[
            router_pb2.ArmStatus(
                name=name, requests=seen.requests, failed=seen.failed, ttft_p95_s=seen.ttft_p95_s
            )
            for name, seen in arms.items()
        ],
    )
