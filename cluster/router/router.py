"""The router: takes requests on within its bound, and gives each client the events of its request.

`cluster/router/phases.py` has the phases of a request. `cluster/router/accounting.py` counts its
outcome.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from cluster.admission.admission_queue import AdmissionQueue
from cluster.admission.arrival import arrival_of
from cluster.admission.refusals import Refused
from cluster.admission.router_capacity import RouterCapacity
from cluster.api import (
    Event,
    GenerateRequest,
    ModelCard,
    Summary,
)
from cluster.config.router import RouterConfig
from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.discovery.silent_replicas import SilentReplicas
from cluster.placement.placement import Placement
from cluster.replica_record import ReplicaLoad
from cluster.router.accounting import RequestAccount, RequestAccounting
from cluster.router.event_buffer import EventBuffer
from cluster.router.failover import Failover
from cluster.router.phases import RequestPhases
from cluster.router.preprocessor import Preprocessor
from cluster.rpc.client_stream import CallStreams
from cluster.telemetry import router_metrics as metrics
from cluster.telemetry.loop_lag import LoopLag
from cluster.tenants.fair_share import FairShare
from engine.errors import (
    Cancelled,
    Internal,
    InvalidRequest,
    Overloaded,
    TandemError,
    Unavailable,
)
from engine.kv.prefix_digest import DEFAULT_TENANT
from engine.types.lane_quota import most_of
from protos.wire.client import Connector

log = logging.getLogger(__name__)

# Bound: the least retry time of a router that ends.
_LEAST_RETRY_S = 1.0


@dataclass(slots=True)
class _RunningRequest:
    """A request in this router: its account, its events, and the task that makes them."""

    account: RequestAccount
    choices: int
    events: EventBuffer = field(default_factory=EventBuffer)
    task: asyncio.Task[None] | None = None


class Router:
    """Serves requests from the pools. Implements `cluster.api.requests.Generator`.

    `silent` is to be told of each tick of the load reports.
    """

    def __init__(
        self,
        config: RouterConfig,
        preprocessor: Preprocessor,
        pools: HealthyReplicas,
        placement: Placement,
        fairness: FairShare,
        accounting: RequestAccounting,
        connector: Connector,
    ) -> None:
        self._config = config
        self._preprocessor = preprocessor
        self._pools = pools
        self._placement = placement
        self._admission = AdmissionQueue(pools, placement, config.max_waiting, fairness)
        self._accounting = accounting
        self._streams = CallStreams(connector)
        self.silent = SilentReplicas(pools, self._streams)
        reassigner = self._admission.assigner.reassigner
        self._failover = Failover(
            reassigner, self._streams, pools.suspect, config.failover_timeout_s
        )
        self._phases = RequestPhases(
            config.request_timeout_s,
            preprocessor,
            pools,
            placement,
            self._admission,
            self._failover,
        )
        # By the tenant that a request counts for, and the request id, which is unique in a tenant.
        self._running: dict[tuple[str, str], _RunningRequest] = {}
        self._choices = 0
        self._capacity = RouterCapacity()
        self._closes_s: float | None = None
        self.lag = LoopLag()

    @property
    def model(self) -> ModelCard:
        """The model that is served."""
        return self._preprocessor.model

    @property
    def running(self) -> int:
        """Requests in this router now."""
        return len(self._running)

    def load(self) -> ReplicaLoad:
        """The load of this router, and the unserved demand of the pools."""
        now = time.monotonic()
        unserved = self._admission.unserved(now)
        return ReplicaLoad(
            waiting=self._admission.waiting,
            running=self.running,
            unserved_prefill=unserved["prefill"],
            unserved_decode=unserved["decode"],
            unserved_batch=self._admission.unserved_batch(now),
            queued_prefill_s=self._admission.queued_prefill_s,
        )

    def token_text(self, token: int) -> str:
        """One token as text by itself."""
        return self._preprocessor.token_text(token)

    def text(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self._preprocessor.text(ids)

    def missing(self) -> tuple[str, ...]:
        """The pools without a healthy replica, and `router` if this one serves nobody new.

        That is so once it ends, and for a while after its event loop stood still.
        """
        unfit = self._closes_s is not None or self.lag.late(time.monotonic())
        return self._pools.missing() + (("router",) if unfit else ())

    def unhealthy(self) -> tuple[str, ...]:
        """The replicas that are there and get no work."""
        return self._pools.unhealthy()

    def refuse_new(self, for_s: float) -> None:
        """Refuse new requests from now on. The router is gone after `for_s` at most."""
        self._closes_s = time.monotonic() + for_s

    async def cancel(self, request_id: str, tenant: str) -> bool:
        """End a tenant's request wherever it is; False where it has none under that id."""
        running = self._running.get((self._counts_for(tenant), request_id))
        if running is None or running.task is None:
            return False
        running.task.cancel()
        # Ended here and not in the task, because the task may not have begun yet.
        running.events.end_with(Cancelled("the request was cancelled"))
        return True

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """Started, then Tokens, then Summary; raises a TandemError. Closing it cancels."""
        request_id = request.request_id or secrets.token_hex(12)
        account = self._accounting.open(request, request_id, self._counts_for(request.tenant))
        try:
            self._refuse_early(request, account)
            running = self._take_on(request, account)
        except TandemError as error:
            self._accounting.turned_away(account, error)
            raise
        running.task = asyncio.create_task(self._drive(request, running))
        try:
            while True:
                event = await running.events.get()
                if isinstance(event, TandemError):
                    raise event
                yield event
                if isinstance(event, Summary):
                    return
        finally:
            await self._release(running)

    def show(self) -> None:
        """Set the gauges to their present values."""
        metrics.RUNNING.set(len(self._running))
        self._admission.show()

    def members_changed(self) -> None:
        """Let streams that wait to be computed again go to replicas that joined."""
        self._failover.hasten()

    async def forget_gone(self) -> None:
        """Drop streams to and counts of replicas that left."""
        members = self._pools.members()
        self._placement.forget(record.id for record in members)
        addresses = [record.address for record in members]
        await self._streams.keep(addresses, self._config.request_timeout_s)

    async def close(self) -> None:
        """End every request and close the streams."""
        for tenant, request_id in list(self._running):
            await self.cancel(request_id, tenant)
        await self._streams.close()

    def _counts_for(self, tenant: str) -> str:
        """The tenant for caps and metrics: without API keys all requests count for `default`."""
        return DEFAULT_TENANT if self._config.api_keys is None else tenant

    def _refuse_early(self, request: GenerateRequest, account: RequestAccount) -> None:
        """Raise Refused where no wait can help the request; this is decided without its tokens."""
        endpoint = self._preprocessor.configured(request)
        if endpoint is None:
            return
        arrival = arrival_of(request, endpoint, account.tenant, account.began_s)
        if arrival is None:
            return
        try:
            self._admission.refuse_early(arrival)
        except Refused as refused:
            metrics.REFUSED.inc(reason=refused.reason, **account.labels)
            raise

    def _take_on(self, request: GenerateRequest, account: RequestAccount) -> _RunningRequest:
        """Begin the request, within the router's bound; raises a TandemError."""
        if self._closes_s is not None:
            left_s = max(_LEAST_RETRY_S, self._closes_s - time.monotonic())
            raise Unavailable("this cluster is ending", retry_after_s=left_s)
        key = account.tenant, account.request_id
        if key in self._running:
            name = account.request_id
            raise InvalidRequest(f"request_id {name!r} is running already", field="request_id")
        endpoint = self._preprocessor.configured(request)
        batch = endpoint is not None and endpoint.lane == "batch"
        most = most_of(self._config.max_requests, batch=batch)
        if request.n > most:
            raise InvalidRequest(f"n is {request.n}: at most {most} choices run here", field="n")
        if self._choices + request.n > most:
            metrics.REFUSED.inc(reason="router_full", **account.labels)
            now, beyond = time.monotonic(), max(0, self._choices - most)
            wait_s = self._capacity.wait_s(request.n, self._choices, now, beyond)
            raise Overloaded(f"{most} requests run here, the most there may", retry_after_s=wait_s)
        running = self._running[key] = _RunningRequest(account, request.n)
        self._choices += request.n
        metrics.RUNNING.set(len(self._running))
        log.info("request accepted", extra={"request_id": account.request_id, **account.labels})
        return running

    async def _release(self, running: _RunningRequest) -> None:
        """End a request: stop its task, and free its id. Idempotent."""
        account = running.account
        running.events.close()
        if self._running.pop((account.tenant, account.request_id), None) is not None:
            self._choices -= running.choices
            # A request without a first token does not show how long requests stay.
            if account.ttft_s is not None:
                self._capacity.ended(time.monotonic() - account.began_s)
        metrics.RUNNING.set(len(self._running))
        if running.task is not None:
            running.task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.shield(running.task)

    async def _drive(self, request: GenerateRequest, running: _RunningRequest) -> None:
        """Serve the request; the last event is its summary or its error."""
        account, outcome = running.account, "cancelled"
        last: Summary | TandemError = Cancelled("the request was cancelled")
        try:
            if account.route.served_as != request.endpoint:
                request = replace(request, endpoint=account.route.served_as)
            last = await self._phases.run(request, account, running.events)
            outcome = "ok"
        except TandemError as error:
            outcome, last = type(error).__name__, error
        except Exception as error:
            outcome, last = "Internal", Internal(f"internal error: {type(error).__name__}")
            log.exception("request failed", extra={"request_id": account.request_id})
        finally:
            self._accounting.ended(account, outcome, last)
        running.events.put(last)
