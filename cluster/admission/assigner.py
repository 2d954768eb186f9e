"""Assigns requests to replicas: plans a pair, has the policy judge it, and counts its load."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from cluster.admission.assignment import Assignment, FirstTokenTiming
from cluster.admission.early_refusal import ArrivingRequest, SizeEstimate
from cluster.admission.offered_load import OfferedLoad
from cluster.admission.policy import (
    Admission,
    Admit,
    Reason,
    Refuse,
    Verdict,
    Wait,
    assign_by,
    decided_by,
)
from cluster.admission.reassigner import Reassigner
from cluster.admission.refusals import Refused, refusal_log
from cluster.admission.unserved_demand import UnservedDemand
from cluster.admission.waiting_queue import Outcome, WaitingQueue, WaitingRequest
from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.placement.placement import Placement
from cluster.placement.types import PlacementPlan, PlacementRequest, one_of
from cluster.replica_record import Pool, ReplicaRecord
from cluster.telemetry import router_metrics as metrics
from cluster.tenants.fair_share import FairShare
from engine.errors import TandemError
from engine.types.urgency import Urgency

# The pools that a request needs: one that scores a text, and one that generates.
_SCORING: tuple[Pool, ...] = ("prefill",)
_GENERATION: tuple[Pool, ...] = ("prefill", "decode")


class Assigner:
    """Decides about one request at a time, and keeps the load of what it assigned.

    `cluster/placement/placement.py` predicts what a request would mean, and
    `cluster/admission/policy.py` says what to do about it. The requests in `waiting` make prompts
    more urgent. `unserved` counts the requests that no pool could take. `reassigner` moves admitted
    choices.
    """

    def __init__(
        self,
        pools: HealthyReplicas,
        placement: Placement,
        fairness: FairShare,
        waiting: WaitingQueue,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy = Admission()
        self.unserved = UnservedDemand()
        self._pools = pools
        self._placement = placement
        self._fairness = fairness
        self._waiting = waiting
        self._clock = clock
        self.reassigner = Reassigner(pools, placement, self._plan, self._take, clock)
        self._refusals = refusal_log(clock)
        self._offered = OfferedLoad()
        self._sizes = SizeEstimate()

    def decide(
        self, waiting: WaitingRequest, now: float, ahead_s: float, *, may_wait: bool = True
    ) -> Outcome | None:
        """Decide about a request: its assignments, the refusal, or None while it waits.

        `ahead_s` and `may_wait` are as in the policy. Raises Unavailable and InvalidRequest.
        """
        if self._still_capped(waiting, now):
            return None
        if asleep := self.asleep(waiting.request):
            left_s = self._pools.starts.request(asleep, now)
            return self._not_admitted(
                waiting, self.policy.until_started(waiting.request, left_s, now), now
            )
        prefill = self._pools.healthy("prefill")
        waiting.feasible = True  # or the plan would be as urgent as the forecast before it
        plan = self._plan(waiting.request, now, prefill)
        verdict = self._judge(waiting, plan, now, ahead_s, may_wait, len(prefill))
        if isinstance(verdict, Admit):
            return self._assign(waiting.request, plan, now)
        return self._not_admitted(waiting, verdict, now)

    def computed(self, assignment: Assignment, first: FirstTokenTiming) -> None:
        """Learn the cost of a sent first token, and the error of its prediction."""
        now, plan, request = self._clock(), assignment.plan, assignment.request
        replica = plan.pair.prefill.id
        cached, urgency = first.cached_tokens, plan.forecast.urgency
        self._placement.computed(
            replica, request.prompt_tokens, cached, first.prefill_s, now, urgency, first.passes
        )
        self._placement.costs.learn_flush(first.flush_s)
        assignment.prefilled()
        metrics.PREDICTED_QUEUE.set(self._placement.queue_s(replica, now), replica=replica)
        # A lost replica is no error of the prediction, and a guess was no prediction.
        predicted = plan.forecast.learned and not assignment.failed_over
        if predicted and not request.batch and request.scored_from is None:
            late = now > plan.forecast.deadline_s + first.flush_s
            self.policy.learn(late, request.budget_s)

    def release(self, assignment: Assignment, output_tokens: int = 0) -> None:
        """End a choice, which had so many output tokens."""
        pair = assignment.plan.pair
        if not pair.prefill_only:
            stayed_s = self._clock() - assignment.assigned_s
            self._placement.costs.learn_stream(pair.decode.id, stayed_s)
        assignment.release(output_tokens)

    def refusal(self, request: PlacementRequest, reason: Reason, now: float) -> Refused:
        """A refusal of the request for that reason, with a promised retry."""
        if asleep := self.asleep(request):
            left_s = self._pools.starts.left_s(asleep, now)
            return self._refused(request.arrived_s, Refuse(reason, left_s), now)
        replicas = len(self._pools.healthy("prefill"))
        forecast = self._plan(request, now).forecast
        verdict = self.policy.refuse(reason, request, forecast, now, replicas=replicas)
        return self._refused(request.arrived_s, verdict, now)

    def refuse_early(self, arrival: ArrivingRequest, now: float) -> Refused | None:
        """The refusal of a request that arrives behind too much work; None: it is to be planned."""
        tokens = self._sizes.tokens(arrival.size)
        before = self._waiting.work_before(arrival.tenant, tokens)
        ahead = self._sizes.ahead(arrival.size, *before, now)
        verdict = self.policy.refuse_early(
            arrival, ahead, now, lambda: max(1, len(self._pools.healthy("prefill")))
        )
        return None if verdict is None else self._refused(arrival.arrived_s, verdict, now)

    def settle(self, waiting: WaitingRequest) -> None:
        """Use up the promised retry of a request that is decided or gone. Idempotent."""
        if waiting.promised:
            waiting.promised = False
            self.policy.settle_retry(waiting.request)

    def asleep(self, request: PlacementRequest) -> tuple[Pool, ...]:
        """The pools that this request needs and that must be woken first."""
        return self._pools.asleep(_SCORING if request.scored_from is not None else _GENERATION)

    def tokens_left(self, request: PlacementRequest) -> int:
        """Prompt tokens to compute on the prefill replica that has most of the prompt cached."""
        return self._placement.left(self._pools.healthy("prefill"), request)

    def wait_s(self, request: PlacementRequest, before: int, now: float) -> float | None:
        """Seconds that a request is predicted to wait behind `before` others; None if unknown."""
        if asleep := self.asleep(request):
            return self._pools.starts.left_s(asleep, now)
        try:
            plan = self._plan(request, now)
        except TandemError:
            return None  # the next decision about the request will raise it
        if not self._placement.costs.knows(plan.pair.prefill.id, plan.pair.decode.id):
            return None
        replicas = len(self._pools.healthy("prefill"))
        return self.policy.wait_s(request, plan.forecast, before, now, replicas=replicas)

    def show(self) -> None:
        """Set the gauges of the predicted queues."""
        now = self._clock()
        for record in self._pools.healthy("prefill"):
            queue_s = self._placement.queue_s(record.id, now)
            metrics.PREDICTED_QUEUE.set(queue_s, replica=record.id)

    def _judge(
        self,
        waiting: WaitingRequest,
        plan: PlacementPlan,
        now: float,
        ahead_s: float,
        may_wait: bool,
        replicas: int,
    ) -> Verdict:
        """The verdict of the policy on the plan, and then of the tenant's caps."""
        request, forecast, own_device = waiting.request, plan.forecast, plan.pair.own_device
        waiting.feasible = forecast.feasible
        waiting.tokens_left = request.prompt_tokens - plan.pair.cached_tokens
        waiting.planned_s = now
        waiting.assign_by_s = assign_by(request, forecast, self.policy.margin_s(request.budget_s))
        self._sizes.learn(request, waiting.tokens_left, forecast, now, own=own_device)
        # A prompt that is computed on a device of its own does not delay the waiting requests.
        self._note_work(waiting, 0.0 if own_device else forecast.added_s / replicas, now)
        verdict = self.policy.judge(
            request,
            forecast,
            now,
            replicas=replicas,
            promised=waiting.promised,
            ahead_s=0.0 if own_device else ahead_s,
            may_wait=may_wait,
        )
        capped = self._fairness.cap(request.tenant, waiting.need)
        if capped is not None and not isinstance(verdict, Refuse):
            return self.policy.wait(capped, request, forecast, now)
        return verdict

    def _not_admitted(
        self, waiting: WaitingRequest, verdict: Wait | Refuse, now: float
    ) -> Refused | None:
        if isinstance(verdict, Refuse):
            return self._refused(waiting.request.arrived_s, verdict, now)
        waiting.waits_for(verdict.reason)
        slot = verdict.reason in ("decode_batch", "itl")
        decoders = max(1, len(self._pools.healthy("decode")))
        waiting.slot_s = self._sizes.interval_s / decoders if slot else 0.0
        return None

    def _still_capped(self, waiting: WaitingRequest, now: float) -> bool:
        """Whether the request still waits for its own tenant, and need not be planned again."""
        if not waiting.capped or now >= decided_by(waiting.request):
            return False
        return self._fairness.cap(waiting.request.tenant, waiting.need) is not None

    def _note_work(self, waiting: WaitingRequest, alone_s: float, now: float) -> None:
        """Note the request's seconds of computing, which count as offered load the first time."""
        if waiting.alone_s is None and not waiting.request.batch:
            self._offered.add(alone_s, now, waiting.request.budget_s)
        waiting.alone_s = alone_s

    def _plan(
        self,
        request: PlacementRequest,
        now: float,
        prefill: Sequence[ReplicaRecord] | None = None,
    ) -> PlacementPlan:
        return self._placement.plan(
            self._pools.healthy("prefill") if prefill is None else prefill,
            self._pools.healthy("decode"),
            request,
            now,
            stale=self._pools.stale(),
            margin_s=self.policy.margin_s(request.budget_s),
            least=self._least_urgency(now),
        )

    def _least_urgency(self, now: float) -> Urgency:
        """The least urgency of prompts beside streams, from the offered load and the queue."""
        return Urgency.URGENT if self._offered.overloaded(now) else self._waiting.least_urgency

    def _assign(
        self, request: PlacementRequest, plan: PlacementPlan, now: float
    ) -> list[Assignment]:
        """Assign each choice to a pair of its own. The plan is that of the first choice."""
        assignments: list[Assignment] = []
        try:
            for choice in range(request.choices):
                one = one_of(request)
                assignments.append(self._take(one, self._plan(one, now) if choice else plan, now))
        except BaseException:
            for taken in assignments:
                taken.release()
            raise
        return assignments

    def _take(self, request: PlacementRequest, plan: PlacementPlan, now: float) -> Assignment:
        pair = plan.pair
        if not pair.local:
            self._placement.learn(pair.prefill, request.digests)
        kv_tokens = request.most_tokens
        computed = request.prompt_tokens - pair.cached_tokens
        self._fairness.start(request.tenant, computed, kv_tokens)
        on_end = partial(self._fairness.end, request.tenant, kv_tokens=kv_tokens)
        shares = self._placement.add_load(plan, request, now)
        return Assignment(request, plan, shares, now, on_end)

    def _refused(self, arrived_s: float, verdict: Refuse, now: float) -> Refused:
        retry = {"retry_after_s": round(verdict.retry_after_s, 3)}
        self._refusals.note(retry, kind=verdict.reason)
        self.unserved.refused(verdict.reason, now)
        return Refused.by(verdict, now - arrived_s)
