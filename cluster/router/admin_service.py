"""The admin service of a router: `tandem status`, `role`, `rollout`, `restart`, `purge`, `stop`.

It also lists the rows of the request log (`cluster/router/rows/row_service.py`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict

import grpc

from cluster.api.validation import check_tenant
from cluster.config.schema import TandemConfig
from cluster.config.version import config_version
from cluster.config.weakenings import restart_notices, weakenings
from cluster.discovery.request_seal import RequestSeal
from cluster.discovery.rollout import (
    UNDER_WAY,
    RolloutRequest,
    RolloutState,
    next_config,
    refuse_weakening,
    requested_config,
)
from cluster.gateway.grpc_methods import (
    Context,
    Received,
    answering,
    authorization_of,
    method_handler,
)
from cluster.replica_record import ReplicaRecord, ReplicaRole
from cluster.router.canary.routing import CanaryRouting, CanaryState
from cluster.router.console.parts import KnownCluster
from cluster.router.console.replica_speed import ReplicaSpeed, speeds
from cluster.router.rows.gathered_rows import GatheredRows
from cluster.router.rows.row_service import RowService
from cluster.rpc.role_control import check_flip, request_purge, request_role, working_role
from cluster.tenants.api_keys import ApiKeys
from engine.errors import TandemError, Unavailable
from protos import router_pb2

log = logging.getLogger(__name__)

SERVICE = "tandem.internal.v1.Admin"
# How long a new role may take to be seen here, and the poll interval meanwhile.
SEEN_S = 3.0
_POLL_S = 0.02


class AdminServicer:
    """Answers from the router's copy of the directory.

    Each call needs an operator's key. Without one it gets Unauthenticated or PermissionDenied, and
    nothing else is read of it.
    `forget_streams` removes a tenant's resumable streams. `rows` lists the request logs.
    """

    def __init__(
        self,
        config: TandemConfig,
        cluster: KnownCluster,
        keys: ApiKeys,
        canaries: CanaryRouting,
        forget_streams: Callable[[str], Awaitable[int]],
        rows: GatheredRows,
    ) -> None:
        self._rows = RowService(rows, self._operator)
        self._forget_streams = forget_streams
        self._config = config
        self._keys = keys
        self._canaries = canaries
        self._latest, self._costs = cluster.latest, cluster.placement.costs
        self._membership = cluster.membership
        self._pools = cluster.pools
        self._directory = cluster.directory
        self._flipping = asyncio.Lock()

    def handlers(self) -> grpc.GenericRpcHandler:
        """The service's methods, for a server."""
        form = grpc.unary_unary_rpc_method_handler
        methods = {
            "Status": method_handler(form, self.Status, router_pb2.StatusRequest),
            "Stop": method_handler(form, self.Stop, router_pb2.StopRequest),
            "Rollout": method_handler(form, self.Rollout, router_pb2.RolloutRequest),
            "GiveRole": method_handler(form, self.GiveRole, router_pb2.GiveRoleRequest),
            "Purge": method_handler(form, self.Purge, router_pb2.PurgeRequest),
            "ListRequests": method_handler(
                form, self._rows.ListRequests, router_pb2.ListRequestsRequest
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def Status(  # noqa: N802
        self, request: Received[router_pb2.StatusRequest], context: Context
    ) -> router_pb2.StatusResponse:
        """Every replica as last reported, and the pools with too few replicas."""
        async with answering(context):
            self._operator(context)
            await request.read()
            members = [self._latest(record) for record in self._pools.members()]
            known = speeds(members, self._costs)
            replicas = [self._describe(record, known[record.id]) for record in members]
            canaries = [_canary(state) for state in self._canaries.states()]
            return router_pb2.StatusResponse(
                replicas=replicas,
                missing=self._shortfalls(),
                canaries=canaries,
                config=config_version(self._config),
                rollout=await self._shown_rollout(),
                starting=[
                    router_pb2.StartingReplica(**one.shown)
                    for one in await self._directory.starting.unfinished()
                ],
            )

    async def Stop(  # noqa: N802
        self, request: Received[router_pb2.StopRequest], context: Context
    ) -> router_pb2.StopResponse:
        """Have the launcher end the cluster; Unavailable where no launcher listens."""
        async with answering(context):
            operator = self._operator(context)
            await request.read()
            seal = await self._seal()
            if seal is None or not await self._directory.request_stop(seal.of_stop()):
                raise Unavailable("this cluster was not started by `tandem serve`; stop it in Ray")
            log.warning("stop requested", extra={"operator": operator})
            return router_pb2.StopResponse()

    async def Rollout(  # noqa: N802
        self, request: Received[router_pb2.RolloutRequest], context: Context
    ) -> router_pb2.RolloutResponse:
        """Have the launcher begin a rollout.

        Unavailable if none listens, or a rollout goes on. InvalidRequest if the configuration is
        wrong, or weakens security and the request does not say so.
        """
        async with answering(context):
            operator = self._operator(context)
            wanted = await request.read()
            last = await self._last_rollout()
            if last is not None and last.state in UNDER_WAY:
                raise Unavailable("another rollout is under way; ask again when it has ended")
            state = RolloutState(secrets.token_hex(8))
            rollout = RolloutRequest(
                state.id, wanted.configuration, operator, wanted.weaken_security, wanted.restart
            )
            requested = requested_config(rollout, self._config)
            config = next_config(self._config, requested)
            refuse_weakening(weakened := weakenings(self._config, config), rollout)
            notices = restart_notices(self._config, requested)
            seal = await self._seal()
            if seal is None or not await self._directory.request_rollout(
                rollout.sealed(seal).to_json(), state.to_json()
            ):
                raise Unavailable(
                    "this cluster was not started by `tandem serve`; use `serve deploy`"
                )
            log.warning("rollout requested", extra=_who(operator, weakened) | {"rollout": state.id})
            return router_pb2.RolloutResponse(id=state.id, weakens=weakened, notices=notices)

    async def GiveRole(  # noqa: N802
        self, request: Received[router_pb2.GiveRoleRequest], context: Context
    ) -> router_pb2.GiveRoleResponse:
        """Give a replica another role; NotFound, or InvalidRequest where that cannot be.

        Changes one role at a time, and answers when this router uses the new role. Unavailable if
        the replica has taken it, and this router does not read it in the directory.
        """
        async with answering(context):
            operator = self._operator(context)
            wanted = await request.read()
            role = working_role(wanted.role)
            async with self._flipping:
                members = [one for one in self._pools.members() if self._pools.trusted(one)]
                replica = check_flip(members, wanted.replica, role)
                before = await request_role(self._membership.connector(), replica, role)
                flipped = {"replica": wanted.replica, "role": role}
                log.warning("role given by an operator", extra={"operator": operator} | flipped)
                await self._see_role(replica, role)
            return router_pb2.GiveRoleResponse(before=before)

    async def Purge(  # noqa: N802
        self, request: Received[router_pb2.PurgeRequest], context: Context
    ) -> router_pb2.PurgeResponse:
        """Purge a tenant's cached blocks and resumable streams; name what did not answer."""
        async with answering(context):
            operator = self._operator(context)
            tenant = check_tenant((await request.read()).tenant)
            replicas = [one for one in self._pools.members() if one.role != "router"]
            connector = self._membership.connector()
            answers = await asyncio.gather(
                *(request_purge(connector, one, tenant) for one in replicas), return_exceptions=True
            )
            log.warning("tenant purged", extra={"operator": operator, "purged": tenant})
            response = router_pb2.PurgeResponse()
            try:
                response.streams = await self._forget_streams(tenant)
            except Unavailable as error:
                response.failed["resumable streams"] = error.message
            for replica, answer in zip(replicas, answers, strict=True):
                if isinstance(answer, int):
                    response.blocks[replica.id] = answer
                elif isinstance(answer, TandemError):
                    response.failed[replica.id] = answer.message
                else:
                    raise answer
            return response

    def _operator(self, context: Context) -> str:
        """The operator of a call, by the key; the caller's address counts for nothing."""
        return self._keys.operator(authorization_of(context))

    async def _seal(self) -> RequestSeal | None:
        """The seal of requests to the launcher; None if none listens."""
        launcher = await self._directory.launcher()
        return None if launcher is None else RequestSeal(self._membership.secret, launcher)

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

    async def _see_role(self, replica: ReplicaRecord, role: ReplicaRole) -> None:
        """Wait until this router uses the new role. Raises Unavailable after `SEEN_S`."""
        until_s = time.monotonic() + SEEN_S
        while (replica.id, role) not in ((one.id, one.role) for one in self._pools.members()):
            if time.monotonic() >= until_s:
                raise Unavailable(f"{replica.id} took the role {role}; the directory lacks it")
            await asyncio.sleep(_POLL_S)

    def _shortfalls(self) -> list[str]:
        wanted = self._config.least_replicas
        have = {pool: len(self._pools.healthy(pool)) for pool in wanted}
        return [
            f"{pool} ({have[pool]} of {desired})"
            for pool, desired in wanted.items()
            if have[pool] < desired
        ]

    def _describe(self, record: ReplicaRecord, speed: ReplicaSpeed) -> router_pb2.ReplicaStatus:
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
            prefill_s=speed.prefill_s,
            step_s=speed.step_s,
            slow=speed.slow,
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


def _who(operator: str, weakened: Sequence[str]) -> dict[str, object]:
    """The fields of a log line: the operator, and what a rollout weakens."""
    return {"operator": operator} | ({"weakens": list(weakened)} if weakened else {})
