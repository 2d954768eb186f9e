"""The admission queue: requests are admitted, wait for capacity, or are refused.

The assigner (`cluster/admission/assigner.py`) decides about one request. This module decides when:
at its arrival, and again and again while it waits in the queue, whose length is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import get_args

from cluster.admission.assigner import Assigner
from cluster.admission.assignment import Assignment, FirstTokenTiming, QueueWait
from cluster.admission.early_refusal import ArrivingRequest
from cluster.admission.policy import Reason, decided_by
from cluster.admission.queue_position import QueuePositionNotifier, Tell
from cluster.admission.unserved_demand import UnservedDemand
from cluster.admission.waiting_queue import WaitingQueue, WaitingRequest, need_of
from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.placement.placement import Placement
from cluster.placement.types import PlacementRequest
from cluster.replica_record import Pool
from cluster.telemetry import router_metrics as metrics
from cluster.tenants.fair_share import FairShare
from engine.errors import Internal, TandemError

log = logging.getLogger(__name__)

# Bound: the time between two polls. No event tells of a passed deadline, or of a report that frees
# capacity.
_POLL_S = 0.025
# Bound: the least time between two polls, however many first tokens leave.
_SOONEST_POLL_S = 0.005
# Bound: requests that one poll decides about, unless they must be decided by now.
_AT_ONE_POLL = 32
# Bound: how old the plan of a request may be that waits behind others for the same thing.
_PLAN_HOLDS_S = 0.1


class AdmissionQueue:
    """Admits requests to the pools; at most `max_waiting` wait here.

    The `assigner` moves and releases what was admitted. `clock` gives monotonic seconds.
    """

    def __init__(
        self,
        pools: HealthyReplicas,
        placement: Placement,
        max_waiting: int,
        fairness: FairShare | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fairness = FairShare({}) if fairness is None else fairness
        self._pools = pools
        self._max_waiting = max_waiting
        self._clock = clock
        self._waiting = WaitingQueue(self._fairness.served)
        self.assigner = Assigner(pools, placement, self._fairness, self._waiting, clock)
        self._positions = QueuePositionNotifier(
            self.assigner.wait_s, lambda request: bool(self.assigner.asleep(request))
        )
        self._arrivals = 0
        # What the last poll held back in the batch lane (True) and in the others, and when.
        self._held_back: dict[bool, tuple[float, Reason]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._polled_s = 0.0

    @property
    def waiting(self) -> int:
        """Requests that wait here."""
        return len(self._waiting)

    @property
    def queued_prefill_s(self) -> float:
        """Seconds that all prefill replicas together take for the prompts that wait here."""
        return self._waiting.alone_s

    def unserved(self, now: float) -> Counter[Pool]:
        """Requests refused lately or waiting long, by the pool that has no capacity for them.

        The batch lane does not count, except where it wakes a pool that sleeps.
        """
        healthy = {pool: self._pools.healthy(pool) for pool in get_args(Pool)}
        there = {pool: {(r.id, r.generation) for r in found} for pool, found in healthy.items()}
        self._pools.starts.observe(there, now)
        waiting = ((o.request.arrived_s, o.reason) for o in self._waiting if not o.request.batch)
        counts = self.assigner.unserved.count(waiting, now)
        return counts + Counter(self._pools.starts.requested(now))

    def unserved_batch(self, now: float) -> int:
        """Requests of the batch lane that have waited long for decode capacity."""
        waiting = ((o.request.arrived_s, o.reason) for o in self._waiting if o.request.batch)
        return UnservedDemand().count(waiting, now)["decode"]

    def refuse_early(self, arrival: ArrivingRequest) -> None:
        """Raise Refused for a request that arrives behind more than it can wait for.

        The check costs little: the request is not tokenised and not planned.
        """
        refused = self.assigner.refuse_early(arrival, self._clock())
        if refused is not None:
            raise refused

    async def enter(
        self, request: PlacementRequest, tell: Tell | None = None, wait: QueueWait | None = None
    ) -> list[Assignment]:
        """Wait for admission; returns one assignment for each choice, to be released.

        `tell` hears of the queue position and the predicted wait, twice a second at most. `wait`
        notes what the request waited for.
        Raises Refused, Unavailable, InvalidRequest.
        """
        now = self._clock()
        self._fairness.check(request.tenant, need_of(request))
        self._arrivals += 1
        promised, decided = self.assigner.policy.claim_retry(request, now), asyncio.Event()
        listener = None if tell is None else self._positions.listener(request, tell, now)
        left = self.assigner.tokens_left(request) if self._waiting else request.prompt_tokens
        waiting = WaitingRequest(request, left, promised, self._arrivals, decided.set, listener)
        wait = QueueWait() if wait is None else wait
        try:
            return await self._enter(waiting, decided, now, wait)
        finally:
            self.assigner.settle(waiting)
            wait.end()

    async def _enter(
        self, waiting: WaitingRequest, decided: asyncio.Event, now: float, wait: QueueWait
    ) -> list[Assignment]:
        tenant, need = waiting.request.tenant, waiting.need
        behind = self._waiting.any_before(waiting)
        if not behind:
            may_wait = len(self._waiting) < self._max_waiting
            self._decide(waiting, now, self._waiting.ahead_s(waiting), may_wait=may_wait)
        if waiting.decided:
            return waiting.result()
        capped = self._fairness.wait(tenant, need)
        if capped is not None:
            # A feasible request need not wait.
            if not behind:
                self._decide(waiting, now, 0.0, may_wait=False)
            if waiting.decided:
                return waiting.result()
            raise self.assigner.refusal(waiting.request, capped, now)
        try:
            self._add(waiting, now)
            wait.look = partial(self._note, waiting, wait, now)
            await decided.wait()
            return waiting.result()
        except asyncio.CancelledError:
            waiting.withdraw()
            raise
        finally:
            self._fairness.leave(tenant, need)
            self._waiting.remove(waiting)

    def computed(self, assignment: Assignment, first: FirstTokenTiming) -> None:
        """Learn from a sent first token, and poll, because its replica has less to do now."""
        self.assigner.computed(assignment, first)
        if self._waiting:
            self._poll_in(max(0.0, self._polled_s + _SOONEST_POLL_S - self._clock()))

    def show(self) -> None:
        """Set the gauges to the present state."""
        metrics.WAITING.set(len(self._waiting))
        self.assigner.show()

    def _note(self, waiting: WaitingRequest, wait: QueueWait, since_s: float) -> None:
        """Note in `wait` what a request waits for that came to the queue at `since_s`.

        A request whose turn never came waits for what held back the last one before it.
        """
        held_s, reason = self._held_back.get(waiting.request.batch, (since_s, None))
        behind = waiting.reason_before if held_s <= since_s else reason
        wait.reason, wait.stood_behind = waiting.reason or behind, waiting.reason is None
        wait.queued_before, wait.seconds = waiting.queued_before, self._clock() - since_s

    def _add(self, waiting: WaitingRequest, now: float) -> None:
        """Put a request in the queue; raises Refused where the queue is full."""
        if len(self._waiting) >= self._max_waiting:
            other = self._waiting.gives_way(waiting)
            if other is None:
                raise self.assigner.refusal(waiting.request, "queue_full", now)
            self._refuse_full(other, now)
        log.info("request queued", extra={"request_id": waiting.request.request_id})
        self._waiting.add(waiting)
        metrics.WAITING.set(len(self._waiting))
        if self._timer is None:
            self._poll_in(self._poll_due_s(now))

    def _refuse_full(self, waiting: WaitingRequest, now: float) -> None:
        """Refuse a waiting request, because another request takes its position in a full queue."""
        self._waiting.remove(waiting)
        try:
            waiting.decide(self.assigner.refusal(waiting.request, "queue_full", now))
        except TandemError as error:
            waiting.decide(error)

    def _poll_due_s(self, now: float) -> float:
        """Seconds until the next poll. A request that must be decided earlier brings it forward."""
        due_s = min(decided_by(waiting.request) for waiting in self._waiting) - now
        return min(max(due_s, _SOONEST_POLL_S), _POLL_S)

    def _poll_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._poll)

    def _poll(self) -> None:
        """Decide about the first waiting requests, and about all whose decision is due.

        In the batch lane nothing passes the first request that is not feasible. A request that
        waits for its own tenant delays no other.
        """
        self._timer = None
        now = self._polled_s = self._clock()
        polled, ahead_s = 0, 0.0
        in_order, blocked = self._waiting.in_order(), set[Reason | None]()
        for waiting in in_order:
            if polled >= _AT_ONE_POLL and now < decided_by(waiting.request):
                continue
            if waiting.reason in blocked and not _is_due(waiting, now):
                ahead_s += waiting.alone_s or 0.0
                continue
            ahead_s += self._decide(waiting, now, ahead_s)
            if not (waiting.decided or waiting.capped):
                blocked.add(waiting.reason)
                if waiting.reason is not None:
                    self._held_back[waiting.request.batch] = now, waiting.reason
            if waiting.capped:
                continue
            polled += 1
            if waiting.request.batch and not waiting.decided:
                break
        self._waiting.drop_decided()
        metrics.WAITING.set(len(self._waiting))
        if self._waiting:
            self._poll_in(self._poll_due_s(now))
        self._positions.tell([one.listener for one in in_order if not one.decided], now)

    def _decide(
        self, waiting: WaitingRequest, now: float, ahead_s: float, *, may_wait: bool = True
    ) -> float:
        """Decide about a request; returns the seconds of computing that go on waiting with it."""
        if waiting.decided:
            return 0.0
        try:
            outcome = self.assigner.decide(waiting, now, ahead_s, may_wait=may_wait)
        except TandemError as error:
            outcome = error
        except Exception:
            log.exception(
                "a request could not be decided", extra={"request_id": waiting.request.request_id}
            )
            outcome = Internal("internal error in admission")
        if outcome is None:
            return waiting.alone_s or 0.0
        waiting.decide(outcome)
        self.assigner.settle(waiting)
        return 0.0


def _is_due(waiting: WaitingRequest, now: float) -> bool:
    """Whether a request must be decided again, though one before it waits for the same thing."""
    old = now - waiting.planned_s >= _PLAN_HOLDS_S
    return old or now >= min(waiting.assign_by_s, decided_by(waiting.request))
