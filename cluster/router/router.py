"""The router: takes requests on within its bound, and gives each client the events of its request.

`cluster/router/phases.py` has the phases of a request. `cluster/router/accounting.py` counts its
outcome.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial

from cluster.admission.admission_queue import AdmissionQueue
from cluster.admission.arrival import arrival_of
from cluster.admission.refusals import Refused
from cluster.api import Event, GenerateRequest, ModelCard, ResumeRequest, Started, Summary
from cluster.api.event_streams import closing
from cluster.api.prompts import ChatPrompt
from cluster.config.router import RouterConfig
from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.discovery.silent_replicas import SilentReplicas
from cluster.parsing.answer_parser import AnswerReader
from cluster.placement.placement import Placement
from cluster.replica_record import ReplicaLoad
from cluster.router.accounting import RequestAccount, RequestAccounting
from cluster.router.failover import Failover
from cluster.router.peers.request_stops import RequestStops
from cluster.router.phases import EmitOf, RequestPhases
from cluster.router.preprocessor import Preprocessor
from cluster.router.request_tasks import RequestTasks
from cluster.router.resumable.rest import RestRunner
from cluster.router.resumable.streams import Journal, ResumableStreams
from cluster.router.resume_state import PreparedRequest
from cluster.router.running_requests import RunningRequest, RunningRequests
from cluster.rpc.client_stream import CallStreams
from cluster.telemetry import router_metrics as metrics
from cluster.telemetry.loop_lag import LoopLag
from cluster.tenants.fair_share import FairShare
from engine.errors import InvalidRequest, NotFound, Overloaded, TandemError, Unavailable
from engine.kv.prefix_digest import DEFAULT_TENANT
from engine.text.text_offsets import TextOffsets
from protos.wire.client import Connector

log = logging.getLogger(__name__)

# Bound: the least retry time of a router that ends.
_LEAST_RETRY_S = 1.0


class Router:
    """Serves requests from the pools. Implements `cluster.api.requests.Generator`.

    `silent` is to be told of each tick of the load reports. `in_flight` has what runs here, and
    `stops` ends it.
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
        journal: Journal | None = None,
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
        self.in_flight = RunningRequests(config.max_requests)
        self.stops = RequestStops(self.in_flight)
        self._tasks = tasks = RequestTasks(accounting, self.in_flight)
        rest = RestRunner(
            self.in_flight, tasks, accounting, self._phases, self._counts_for, self._check_open
        )
        self._resumable = None if journal is None else ResumableStreams(journal, rest)
        self._closes_s: float | None = None
        self.lag = LoopLag()

    @property
    def model(self) -> ModelCard:
        """The model that is served."""
        return self._preprocessor.model

    @property
    def running(self) -> int:
        """Requests in this router now."""
        return len(self.in_flight)

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

    def offsets(self) -> TextOffsets:
        """The offsets of the tokens of a new text."""
        return self._preprocessor.offsets()

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

    def end_plain(self) -> int:
        """As `RunningRequests.end_plain`."""
        return self.in_flight.end_plain()

    async def cancel(self, request_id: str, tenant: str) -> bool:
        """End a tenant's request on any router; see `RequestStops.cancel`."""
        return await self.stops.cancel(request_id, self._counts_for(tenant))

    async def cancel_stream(self, stream_id: str, tenant: str) -> bool:
        """End a tenant's resumable request on any router; False where it has none."""
        if self._resumable is None:
            return False
        return await self._resumable.cancel(stream_id, self._named(tenant))

    async def count_tokens(self, model: str, prompt: ChatPrompt) -> int:
        """The tokens of a chat; raises a TandemError."""
        self._check_open()
        return await self._phases.count(model, prompt)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """Started, then Tokens, then Summary; raises a TandemError.

        Closing it cancels a request that is not resumable.
        """
        request_id = request.request_id or secrets.token_hex(12)
        account = self._accounting.open(request, request_id, self._counts_for(request.tenant))
        try:
            self._refuse_early(request, account)
            running = self._take_on(request, account)
        except TandemError as error:
            self._accounting.not_begun(account, error)
            raise
        self._tasks.start(running, partial(self._serve, request, running))
        answers = AnswerReader()
        try:
            while True:
                event = await running.events.get()
                if isinstance(event, TandemError):
                    raise event
                yield answers.take(event)
                running.delivered = True
                if isinstance(event, Summary):
                    return
        finally:
            if self._resumable is not None and running.outlives:
                self._tasks.detach(running, partial(self._resumable.outlive, running))
            else:
                await self._tasks.release(running)

    async def resume(self, request: ResumeRequest) -> AsyncIterator[Event]:
        """The rest of a resumable stream of any router, as `Generator.resume` has it."""
        if self._resumable is None:
            raise NotFound("this router has no journal of streams", field="stream_id")
        async with closing(self._resumable.resume(request, self._named(request.tenant))) as events:
            async for event in events:
                yield event

    async def forget_streams(self, tenant: str) -> int:
        """Forget a tenant's resumable streams; returns their number."""
        return 0 if self._resumable is None else await self._resumable.forget(tenant)

    def show(self) -> None:
        """Set the gauges to their present values."""
        metrics.RUNNING.set(len(self.in_flight))
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
        """End every request and close the streams. Other routers may go on with resumable ones."""
        if self._resumable is not None:
            await self._resumable.leave()
        self.in_flight.end_plain()
        self.in_flight.lose()
        await self._tasks.close()
        await self._streams.close()
        await self._preprocessor.grammars.close()
        if self._resumable is not None:
            await self._resumable.close()

    def _counts_for(self, tenant: str) -> str:
        """The tenant for caps and metrics: without API keys all requests count for `default`."""
        return DEFAULT_TENANT if self._config.api_keys is None else tenant

    def _named(self, tenant: str) -> str | None:
        """The tenant to whom a stream must belong; None without API keys, where nobody is known."""
        return None if self._config.api_keys is None else tenant

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

    def _take_on(self, request: GenerateRequest, account: RequestAccount) -> RunningRequest:
        """Begin the request, within the router's bound; raises a TandemError."""
        self._check_open()
        if request.resumable and self._resumable is None:
            raise InvalidRequest("this router has no journal of streams", field="resumable")
        endpoint = self._preprocessor.configured(request)
        batch = endpoint is not None and endpoint.lane == "batch"
        if request.resumable:
            self.in_flight.replace_unknown(account.tenant, account.request_id)
        try:
            running = self.in_flight.add(account, request.n, batch=batch)
        except Overloaded:
            metrics.REFUSED.inc(reason="router_full", **account.labels)
            raise
        named = {"request_id": account.request_id, **account.trace.fields()}
        log.info("request accepted", extra={**named, **account.labels})
        return running

    def _check_open(self) -> None:
        """Raise Unavailable once this router takes nothing more."""
        if self._closes_s is not None:
            left_s = max(_LEAST_RETRY_S, self._closes_s - time.monotonic())
            raise Unavailable("this cluster is ending", retry_after_s=left_s)

    async def _serve(self, request: GenerateRequest, running: RunningRequest) -> Summary:
        """All phases of a new request."""
        account, events = running.account, running.events
        if account.route.served_as != request.endpoint:
            request = replace(request, endpoint=account.route.served_as)

        def begin(prepared: PreparedRequest, started: Started) -> EmitOf:
            if not request.resumable or self._resumable is None:
                events.put(started)
                return lambda _: events.put
            return self._resumable.open(request, prepared, started, running)

        return await self._phases.run(request, account, events, begin)
