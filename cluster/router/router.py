"""The router: the one place where the phases of a request appear in order.

door → admission → placement → prefill and decode streams → events → release
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
from cluster.admission.assignment import Assignment, FirstTokenTiming
from cluster.admission.refusals import Refused, is_fault
from cluster.admission.router_capacity import RouterCapacity
from cluster.api import (
    ChoiceSummary,
    Event,
    GenerateRequest,
    ModelCard,
    Started,
    Summary,
)
from cluster.api.gather import together
from cluster.config.router import RouterConfig
from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.placement.decode_capacity import token_capacity
from cluster.placement.placement import Placement
from cluster.placement.types import PlacementRequest
from cluster.replica_record import ReplicaLoad
from cluster.router.canary_routing import CanaryRoute, CanaryRouting
from cluster.router.choice_stream import Emit
from cluster.router.decode_progress import DecodeProgress
from cluster.router.event_buffer import EventBuffer
from cluster.router.failover import Failover
from cluster.router.preprocessor import PreparedRequest, Preprocessor
from cluster.router.resume_state import ResumeState
from cluster.router.stream_metrics import StageTimes, StreamMetrics
from cluster.rpc.client_stream import CallStreams
from cluster.telemetry import request_log as ledger
from cluster.telemetry import router_metrics as metrics
from cluster.telemetry.labels import Labels, RequestLabels
from cluster.tenants.fair_share import FairShare
from engine.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    InvalidRequest,
    Overloaded,
    TandemError,
)
from engine.kv.prefix_digest import DEFAULT_TENANT
from engine.types.lane_quota import most_of

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Running:
    """A request in this router: who it counts for, its events, and the task that makes them."""

    choices: int
    tenant: str
    labels: Labels
    began_s: float = field(default_factory=time.monotonic)
    events: EventBuffer = field(default_factory=EventBuffer)
    task: asyncio.Task[None] | None = None
    ttft_s: float | None = None


class Router:
    """Serves requests from the pools. Implements `cluster.api.requests.Generator`."""

    def __init__(
        self,
        config: RouterConfig,
        card: ModelCard,
        door: Preprocessor,
        pools: HealthyReplicas,
        placement: Placement,
        fairness: FairShare,
        labels: RequestLabels,
        canaries: CanaryRouting,
    ) -> None:
        self._config = config
        self._canaries = canaries
        self._card = card
        self._door = door
        self._pools = pools
        self._placement = placement
        self._gate = AdmissionQueue(pools, placement, config.max_waiting, fairness)
        self._labels = labels
        self._streams = CallStreams()
        patience_s = config.failover_timeout_s
        self._carrier = Failover(self._gate.assigner, self._streams, pools.suspect, patience_s)
        # By whom it counts for, and the id, which is that tenant's own.
        self._running: dict[tuple[str, str], _Running] = {}
        self._choices = 0
        self._vacancies = RouterCapacity()

    @property
    def model(self) -> ModelCard:
        """The model that is served."""
        return self._card

    @property
    def running(self) -> int:
        """Requests in this router now."""
        return len(self._running)

    def load(self) -> ReplicaLoad:
        """What this router is doing, and what the pools have no room for."""
        now = time.monotonic()
        unserved = self._gate.unserved(now)
        return ReplicaLoad(
            waiting=self._gate.waiting,
            running=self.running,
            unserved_prefill=unserved["prefill"],
            unserved_decode=unserved["decode"],
            unserved_batch=self._gate.unserved_batch(now),
            queued_prefill_s=self._gate.queued_prefill_s,
        )

    def token_text(self, token: int) -> str:
        """One token as text by itself."""
        return self._door.token_text(token)

    def text(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self._door.text(ids)

    def missing(self) -> tuple[str, ...]:
        """The pools without a healthy replica."""
        return self._pools.missing()

    async def cancel(self, request_id: str, tenant: str) -> bool:
        """End a tenant's request wherever it is; False where it has none under that id."""
        running = self._running.get((self._counts_for(tenant), request_id))
        if running is None or running.task is None:
            return False
        running.task.cancel()
        # Here and not in the task, which may not have begun yet.
        running.events.end_with(Cancelled("the request was cancelled"))
        return True

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """Started, then Tokens, then Summary; raises a TandemError. Closing it cancels."""
        request_id = request.request_id or secrets.token_hex(12)
        try:
            running = self._admit(request_id, request)
        except TandemError as error:
            self._turned_away(request, request_id, error)
            raise
        running.task = asyncio.create_task(self._drive(request, request_id, running))
        try:
            while True:
                event = await running.events.get()
                if isinstance(event, TandemError):
                    raise event
                yield event
                if isinstance(event, Summary):
                    return
        finally:
            await self._release(request_id, running)

    def show(self) -> None:
        """Set the gauges to what is so now."""
        metrics.RUNNING.set(len(self._running))
        self._gate.show()

    async def forget_gone(self) -> None:
        """Drop streams to and counts of replicas that left."""
        members = self._pools.members()
        self._placement.forget(record.id for record in members)
        addresses = [record.calls for record in members]
        await self._streams.keep(addresses, self._config.request_timeout_s)

    async def close(self) -> None:
        """End every request and close the streams."""
        for tenant, request_id in list(self._running):
            await self.cancel(request_id, tenant)
        await self._streams.close()

    def _capacity(self) -> int | None:
        """Tokens that the largest decode pool can hold, where one is known."""
        return max(
            (token_capacity(record) for record in self._pools.healthy("decode")), default=None
        )

    def _counts_for(self, tenant: str) -> str:
        """Without keys a tenant is a name that anybody may give: it counts for nobody."""
        return DEFAULT_TENANT if self._config.api_keys is None else tenant

    def _admit(self, request_id: str, request: GenerateRequest) -> _Running:
        """Take the request on, within the router's bound."""
        tenant = self._counts_for(request.tenant)
        if (tenant, request_id) in self._running:
            raise InvalidRequest(
                f"request_id {request_id!r} is running already", field="request_id"
            )
        most = most_of(self._config.max_requests, batch=self._door.in_batch_lane(request))
        if request.n > most:
            raise InvalidRequest(f"n is {request.n}: at most {most} choices run here", field="n")
        labels = self._labels.of(request, tenant)
        if self._choices + request.n > most:
            metrics.REFUSED.inc(reason="router_full", **labels)
            now, beyond = time.monotonic(), max(0, self._choices - most)
            wait_s = self._vacancies.wait_s(request.n, self._choices, now, beyond)
            raise Overloaded(f"{most} requests run here, the most there may", retry_after_s=wait_s)
        running = _Running(request.n, tenant, labels)
        self._running[tenant, request_id] = running
        self._choices += request.n
        metrics.RUNNING.set(len(self._running))
        log.info("request accepted", extra={"request_id": request_id, **labels})
        return running

    def _turned_away(self, request: GenerateRequest, request_id: str, error: TandemError) -> None:
        """Count what never began as the others are at their end; it had no arm of a canary."""
        tenant, outcome = self._counts_for(request.tenant), type(error).__name__
        metrics.REQUESTS.inc(outcome=outcome, **self._labels.of(request, tenant))
        route = self._canaries.route(self._door.endpoint_of(request), tenant, request_id)
        ledger.write(self._row(tenant, request_id, outcome, error, replace(route, arm=None)))

    async def _release(self, request_id: str, running: _Running) -> None:
        """The one end of a request: its task is over, its name is free. Idempotent."""
        running.events.close()
        if self._running.pop((running.tenant, request_id), None) is not None:
            self._choices -= running.choices
            # Who got no first token tells nothing of how long those stay that fill a router.
            if running.ttft_s is not None:
                self._vacancies.ended(time.monotonic() - running.began_s)
        metrics.RUNNING.set(len(self._running))
        if running.task is not None:
            running.task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.shield(running.task)

    async def _drive(self, request: GenerateRequest, request_id: str, running: _Running) -> None:
        """Prepare the request and run its choices; the last event is the summary or the error."""
        began_s, outcome, labels = time.monotonic(), "cancelled", running.labels
        endpoint = self._door.endpoint_of(request)
        route = self._canaries.route(endpoint, running.tenant, request_id)
        last: Event | TandemError = Cancelled("the request was cancelled")
        try:
            if route.served_as != request.endpoint:
                request = replace(request, endpoint=route.served_as)
            last = await self._serve(request, request_id, running)
            outcome = "ok"
            metrics.TOTAL.observe(last.total_s, **labels)
        except TandemError as error:
            outcome, last = type(error).__name__, error
            if isinstance(error, Overloaded):
                reason = error.reason if isinstance(error, Refused) else "replica_full"
                metrics.REFUSED.inc(reason=reason, **labels)
        except Exception as error:
            outcome, last = "Internal", Internal(f"internal error: {type(error).__name__}")
            log.exception("request failed", extra={"request_id": request_id})
        finally:
            metrics.REQUESTS.inc(outcome=outcome, **labels)
            self._note(route, running, outcome, last, time.monotonic() - began_s)
            row = self._row(running.tenant, request_id, outcome, last, route)
            ledger.write(row.finished(last) if isinstance(last, Summary) else row)
        running.events.put(last)

    def _row(
        self,
        tenant: str,
        request_id: str,
        outcome: str,
        last: Event | TandemError,
        route: CanaryRoute,
    ) -> ledger.RequestRow:
        reason = last.message if isinstance(last, TandemError) else None
        row = ledger.RequestRow(request_id, route.endpoint, route.config, outcome, tenant)
        decided_s = last.decided_s if isinstance(last, Refused) else None
        return replace(row, reason=reason, decided_s=decided_s, arm=route.arm)

    def _note(
        self,
        route: CanaryRoute,
        running: _Running,
        outcome: str,
        last: Event | TandemError,
        took_s: float,
    ) -> None:
        """Tell the canary's judge; who gave up before the first token waited so long at least."""
        ttft_s = running.ttft_s
        if ttft_s is None and outcome == "cancelled":
            ttft_s = took_s
        failed = isinstance(last, TandemError) and is_fault(last)
        self._canaries.ended(route, outcome, ttft_s, failed=failed)

    async def _serve(self, request: GenerateRequest, request_id: str, running: _Running) -> Summary:
        """The phases in order: door, admission and placement, streams of the choices, summary."""
        began_s, timeout_s = time.monotonic(), self._config.request_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                most = self._capacity() if request.sampling.max_tokens is None else None
                prepared = await self._door.prepare(request, request_id, most)
                if prepared.delivery.at_end:
                    running.events.keep_text()
                seed, prompt_tokens = prepared.sampling.seed or 0, len(prepared.prompt_ids)
                tell = running.events.put if prepared.delivery.progress else None
                placed = await self._gate.enter(ask_of(prepared, began_s, running.tenant), tell)
                metrics.PROMPT_TOKENS.inc(prompt_tokens, **running.labels)
                try:
                    started = Started(request_id, self._card.name, prompt_tokens, seed)
                    running.events.put(started)
                    return await self._run_choices(prepared, placed, running, began_s)
                finally:
                    for one in placed:
                        one.release()
        except TimeoutError:
            raise DeadlineExceeded(f"the request took more than {timeout_s:g} s") from None

    async def _run_choices(
        self, prepared: PreparedRequest, placed: list[Assignment], running: _Running, began_s: float
    ) -> Summary:
        runs = [
            self._run_choice(prepared, choice, one, running, began_s)
            for choice, one in enumerate(placed)
        ]
        results = await together(runs)
        return Summary(
            prompt_tokens=len(prepared.prompt_ids),
            completion_tokens=sum(tokens for _, tokens in results),
            choices=tuple(summary for summary, _ in results),
            total_s=time.monotonic() - began_s,
        )

    async def _run_choice(
        self,
        prepared: PreparedRequest,
        choice: int,
        placed: Assignment,
        running: _Running,
        began_s: float,
    ) -> tuple[ChoiceSummary, int]:
        """Stream one placed choice; returns its summary and its number of tokens."""
        delivery = prepared.delivery
        emit: Emit = running.events.put
        if delivery.at_end and delivery.progress:
            emit = DecodeProgress(emit, prepared.sampling.max_tokens or 1)
        if prepared.lane != "batch":
            left_s = max(0.0, placed.plan.forecast.deadline_s - time.monotonic())
            prepared = replace(prepared, ttft_budget_s=left_s)
        stream = StreamMetrics(running.labels, placed, began_s, emit)
        record = ResumeState(prepared, choice, StageTimes(began_s))
        pair, names = placed.plan.pair, record.named_in_log
        where = {"prefill": pair.prefill.id, "decode": pair.decode.id}
        log.info("request placed", extra=names | where)

        def computed(first: FirstTokenTiming) -> None:
            log.info("first token passed on", extra=names | {"ttft_s": first.ttft_s})
            running.ttft_s = first.ttft_s if running.ttft_s is None else running.ttft_s
            stream.first(first)
            self._gate.computed(placed, first)

        try:
            summary = await self._carrier.carry(record, placed, stream.take, computed)
            stream.finished(summary)
            return summary, len(record.output)
        finally:
            stream.close()
            pair, output = placed.plan.pair, record.output
            # The last token's own KV is never computed, and a first one may be prefill's alone.
            if pair.local or len(output) > 1:
                self._placement.learn(pair.decode, prepared.digests(output[:-1]))
            self._gate.assigner.release(placed, len(output))


def ask_of(prepared: PreparedRequest, began_s: float, tenant: str) -> PlacementRequest:
    """What admission and placement need to know of a request that came at `began_s`.

    `tenant` is the one that it counts for.
    """
    return PlacementRequest(
        prompt_tokens=len(prepared.prompt_ids),
        most_tokens=prepared.most_tokens,
        digests=prepared.digests(),
        choices=prepared.choices,
        arrived_s=began_s,
        budget_s=prepared.ttft_budget_s,
        itl_s=prepared.itl_s,
        batch=prepared.lane == "batch",
        key=hash((prepared.tenant, prepared.prompt_ids)),
        tenant=tenant,
        request_id=prepared.request_id,
        scored_from=prepared.scored_from,
    )
