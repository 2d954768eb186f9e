"""Where requests are admitted, wait for room, or are refused: the policies put to work.

`cluster/placement/placement.py` says what a request would mean, `cluster/admission/policy.py` what
to do about it.
What was admitted is counted against its replicas in the same moment. Those that wait are bounded
and looked at in their order (`cluster/admission/waiting_queue.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

from cluster.admission.assignment import Assignment, FirstTokenTiming
from cluster.admission.offered_load import OfferedLoad
from cluster.admission.policy import Admission, Admit, Reason, Refuse, Wait, decided_by
from cluster.admission.queue_position import QueuePositionNotifier, Tell
from cluster.admission.refusals import RefusalLog, Refused
from cluster.admission.unserved_demand import UnservedDemand
from cluster.admission.waiting_queue import WaitingQueue
from cluster.admission.waiting_request import WaitingRequest, need_of
from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.placement.placement import Placement
from cluster.placement.types import PlacementPlan, PlacementRequest, one_of
from cluster.replica_record import Pool, ReplicaRecord
from cluster.telemetry import router_metrics as metrics
from cluster.tenants.fair_share import FairShare
from engine.errors import Internal, TandemError
from engine.types.urgency import Urgency

log = logging.getLogger(__name__)

_LOOK_S = 0.025
_SOONEST_S = 0.005
_AT_ONE_LOOK = 32
_BOTH: tuple[Pool, ...] = ("prefill", "decode")


class AdmissionQueue:
    """Admits requests to the pools; at most `max_waiting` wait here."""

    def __init__(
        self,
        pools: HealthyReplicas,
        placement: Placement,
        max_waiting: int,
        fairness: FairShare | None = None,
    ) -> None:
        self._fairness = FairShare({}) if fairness is None else fairness
        self._pools = pools
        self._placement = placement
        self._admission = Admission()
        self._places = QueuePositionNotifier(self._wait_s, lambda ask: bool(self._asleep(ask)))
        self._refusals = RefusalLog()
        self._unmet = UnservedDemand()
        self._demand = OfferedLoad()
        self._max_waiting = max_waiting
        self._held = WaitingQueue(self._fairness.served)
        self._arrivals = 0
        self._look: asyncio.TimerHandle | None = None
        self._looked_s = 0.0

    @property
    def held(self) -> int:
        """Requests that wait here."""
        return len(self._held)

    def unmet(self, now: float) -> Counter[Pool]:
        """Requests refused lately, or held for long, by the pool that has no room for them.

        Without the batch lane, never refused for want of room; with all that wakes a pool.
        """
        healthy = {pool: self._pools.healthy(pool) for pool in _BOTH}
        there = {pool: {(r.id, r.generation) for r in found} for pool, found in healthy.items()}
        self._pools.starts.look(there, now)
        held = ((one.ask.arrived_s, one.reason) for one in self._held if not one.ask.batch)
        return self._unmet.count(held, now) + Counter(self._pools.starts.called(now))

    def unmet_batch(self, now: float) -> int:
        """Requests of the batch lane that wait for room in decode for long."""
        held = ((one.ask.arrived_s, one.reason) for one in self._held if one.ask.batch)
        return UnservedDemand().count(held, now)["decode"]

    @property
    def held_s(self) -> float:
        """What all prefill replicas together take for the prompts that wait here."""
        return sum(waiter.alone_s or 0.0 for waiter in self._held)

    async def enter(self, ask: PlacementRequest, tell: Tell | None = None) -> list[Assignment]:
        """Wait for admission; one entry for each choice, to be released.

        Who waits for long hears by `tell`, twice a second at most, where and for how much longer.
        Raises Refused, Unavailable, InvalidRequest.
        """
        now, need = time.monotonic(), need_of(ask)
        self._fairness.check(ask.tenant, need)
        self._arrivals += 1
        loop = asyncio.get_running_loop()
        expected, decided = self._admission.expected(ask, now), loop.create_future()
        listener = None if tell is None else self._places.listener(ask, tell, now)
        left = ask.prompt_tokens
        if self._held:
            left = self._placement.left(self._pools.healthy("prefill"), ask)
        waiter = WaitingRequest(ask, left, expected, self._arrivals, decided, listener)
        try:
            return await self._enter(waiter, now)
        finally:
            self._settle(waiter)

    async def _enter(self, waiter: WaitingRequest, now: float) -> list[Assignment]:
        ask, need = waiter.ask, waiter.need
        behind = self._held.any_before(waiter)
        if not behind:
            room = len(self._held) < self._max_waiting
            self._decide(waiter, now, self._held.ahead_s(waiter), late=room)
        if waiter.decided.done():
            return waiter.decided.result()
        capped = self._fairness.wait(ask.tenant, need)
        if capped is not None:
            # What fits needs no place to wait in.
            if not behind:
                self._decide(waiter, now, 0.0, late=False)
            if waiter.decided.done():
                return waiter.decided.result()
            raise self._refusal(ask, capped, now)
        try:
            self._hold(waiter, now)
            return await waiter.decided
        except asyncio.CancelledError:
            self._withdraw(waiter)
            raise
        finally:
            self._fairness.leave(ask.tenant, need)
            self._held.remove(waiter)

    def move(self, placed: Assignment, ask: PlacementRequest, *, streaming: bool) -> None:
        """Give an admitted choice another place, whatever that means for others.

        One that is `streaming` goes to a decode replica, which computes what `ask` has as its
        prompt. Raises Unavailable.
        """
        now, healthy = time.monotonic(), self._pools.healthy
        if streaming:
            pools = healthy("prefill"), healthy("decode")
            placed.plan = self._placement.plan_resume(*pools, ask, now)
        else:
            placed.plan = self._plan(ask, now)
        placed.holds = self._placement.add_load(placed.plan, ask, now)
        placed.moved = True

    def show(self) -> None:
        """Set the gauges to what is so now."""
        now = time.monotonic()
        metrics.WAITING.set(len(self._held))
        for record in self._pools.healthy("prefill"):
            queue_s = self._placement.queue_s(record.id, now)
            metrics.PREDICTED_QUEUE.set(queue_s, replica=record.id)

    def computed(self, placed: Assignment, first: FirstTokenTiming) -> None:
        """A first token has left: learn what it cost, and how good the prediction was."""
        now, plan, ask = time.monotonic(), placed.plan, placed.ask
        replica = plan.pair.prefill.id
        cached, urgency = first.cached_tokens, plan.forecast.urgency
        self._placement.computed(replica, ask.prompt_tokens, cached, first.prefill_s, now, urgency)
        self._placement.costs.learn_flush(first.flush_s)
        placed.prefilled()
        metrics.PREDICTED_QUEUE.set(self._placement.queue_s(replica, now), replica=replica)
        self._look_soon()
        # That a replica is lost is no error of the prediction, and a guess was none.
        foretold = plan.forecast.learned and not placed.moved
        if foretold and not ask.batch and ask.scored_from is None:
            late = now > plan.forecast.deadline_s + first.flush_s
            self._admission.learn(late, ask.budget_s)

    def release(self, placed: Assignment, output_tokens: int = 0) -> None:
        """A choice has ended, with so many tokens."""
        pair = placed.plan.pair
        if not pair.prefill_only:
            stayed_s = time.monotonic() - placed.placed_s
            self._placement.costs.learn_stream(pair.decode.id, stayed_s)
        placed.release(output_tokens)

    def _hold(self, waiter: WaitingRequest, now: float) -> None:
        """Give it a place to wait in; Refused where there is none, nor anybody to leave one."""
        if len(self._held) >= self._max_waiting:
            other = self._held.gives_way(waiter)
            if other is None:
                raise self._refusal(waiter.ask, "queue_full", now)
            self._refuse_full(other, now)
        log.info("request held", extra={"request_id": waiter.ask.request_id})
        self._held.add(waiter)
        metrics.WAITING.set(len(self._held))
        if self._look is None:
            self._look_in(self._look_due_s(now))

    def _refuse_full(self, waiter: WaitingRequest, now: float) -> None:
        """It leaves its place to another."""
        self._held.remove(waiter)
        try:
            waiter.decided.set_exception(self._refusal(waiter.ask, "queue_full", now))
        except TandemError as error:
            waiter.decided.set_exception(error)

    def _look_due_s(self, now: float) -> float:
        """Seconds until the next look: sooner where somebody must be told by then."""
        due_s = min(decided_by(waiter.ask) for waiter in self._held) - now
        return min(max(due_s, _SOONEST_S), _LOOK_S)

    def _look_in(self, seconds: float) -> None:
        if self._look is not None:
            self._look.cancel()
        self._look = asyncio.get_running_loop().call_later(seconds, self._look_again)

    def _look_soon(self) -> None:
        """A replica has less to do than a moment ago."""
        if self._held:
            self._look_in(max(0.0, self._looked_s + _SOONEST_S - time.monotonic()))

    def _look_again(self) -> None:
        """Decide about the first that wait, and about whoever must know by now.

        Of the batch lane the first that does not fit is last. Who waits for its own tenant is in
        nobody's way.
        """
        self._look = None
        now = self._looked_s = time.monotonic()
        looked, ahead_s = 0, 0.0
        held = self._held.in_order()
        for waiter in held:
            if looked >= _AT_ONE_LOOK and now < decided_by(waiter.ask):
                continue
            ahead_s += self._decide(waiter, now, ahead_s)
            if waiter.capped:
                continue
            looked += 1
            if waiter.ask.batch and not waiter.decided.done():
                break
        self._held.drop_decided()
        metrics.WAITING.set(len(self._held))
        if self._held:
            self._look_in(self._look_due_s(now))
        self._places.tell([one.listener for one in held if not one.decided.done()], now)

    def _asleep(self, ask: PlacementRequest) -> tuple[Pool, ...]:
        """The pools that this request needs, and that must be woken first."""
        return self._pools.asleep(("prefill",) if ask.scored_from is not None else _BOTH)

    def _wait_s(self, ask: PlacementRequest, before: int, now: float) -> float | None:
        """For how long a request is predicted to be held here; None where that is not known."""
        if asleep := self._asleep(ask):
            return self._pools.starts.left_s(asleep, now)
        try:
            plan = self._plan(ask, now)
        except TandemError:
            return None  # which the next look at it will tell
        if not self._placement.costs.knows(plan.pair.prefill.id, plan.pair.decode.id):
            return None
        replicas = len(self._pools.healthy("prefill"))
        return self._admission.wait_s(ask, plan.forecast, before, now, replicas=replicas)

    def _decide(
        self, waiter: WaitingRequest, now: float, ahead_s: float, *, late: bool = True
    ) -> float:
        """Returns the computing that goes on waiting, of this request.

        `late`: it may be held though it fits.
        """
        if waiter.decided.done() or self._capped(waiter, now):
            return 0.0
        if asleep := self._asleep(waiter.ask):
            self._wake(waiter, asleep, now)
            return 0.0
        try:
            prefill = self._pools.healthy("prefill")
            waiter.fits = True  # or it would be urgent for what was so a while ago
            plan = self._plan(waiter.ask, now, prefill)
            waiter.fits = plan.forecast.feasible
            waiter.left = waiter.ask.prompt_tokens - plan.pair.cached_tokens
            # Those held here are not in the way of one that is computed apart.
            work_s = 0.0 if plan.pair.own_device else plan.forecast.alone_s / len(prefill)
            self._note_work(waiter, work_s, now)
            verdict = self._admission.judge(
                waiter.ask,
                plan.forecast,
                now,
                replicas=len(prefill),
                expected=waiter.expected,
                ahead_s=0.0 if plan.pair.own_device else ahead_s,
                late=late,
            )
            capped = self._fairness.cap(waiter.ask.tenant, waiter.need)
            if capped is not None and not isinstance(verdict, Refuse):
                verdict = self._admission.wait(capped, waiter.ask, plan.forecast, now)
            if isinstance(verdict, Admit):
                waiter.decided.set_result(self._place(waiter.ask, plan, now))
            elif isinstance(verdict, Wait):
                waiter.waits_for(verdict.reason)
            else:
                waiter.decided.set_exception(self._refused(waiter.ask, verdict, now))
        except TandemError as error:
            waiter.decided.set_exception(error)
        except Exception:
            named = {"request_id": waiter.ask.request_id}
            log.exception("a request could not be judged", extra=named)
            waiter.decided.set_exception(Internal("internal error in admission"))
        if waiter.decided.done():
            self._settle(waiter)
            return 0.0
        return waiter.alone_s or 0.0

    def _settle(self, waiter: WaitingRequest) -> None:
        """What was promised to it is kept no longer: it is decided, or gone."""
        if waiter.expected:
            waiter.expected = False
            self._admission.settle(waiter.ask)

    def _wake(self, waiter: WaitingRequest, asleep: tuple[Pool, ...], now: float) -> None:
        """Nobody is there for it: those whose pools are empty are called, and it waits, or not."""
        left_s = self._pools.starts.call(asleep, now)
        verdict = self._admission.until_started(waiter.ask, left_s, now)
        if isinstance(verdict, Wait):
            waiter.waits_for(verdict.reason)
        else:
            waiter.decided.set_exception(self._refused(waiter.ask, verdict, now))

    def _capped(self, waiter: WaitingRequest, now: float) -> bool:
        """Whether it waits for its own tenant still, and need not be planned again."""
        if not waiter.capped or now >= decided_by(waiter.ask):
            return False
        return self._fairness.cap(waiter.ask.tenant, waiter.need) is not None

    def _note_work(self, waiter: WaitingRequest, alone_s: float, now: float) -> None:
        """What it takes of the replicas; the first time it counts as having come."""
        if waiter.alone_s is None and not waiter.ask.batch:
            self._demand.add(alone_s, now, waiter.ask.budget_s)
        waiter.alone_s = alone_s

    def _plan(
        self, ask: PlacementRequest, now: float, prefill: Sequence[ReplicaRecord] | None = None
    ) -> PlacementPlan:
        return self._placement.plan(
            self._pools.healthy("prefill") if prefill is None else prefill,
            self._pools.healthy("decode"),
            ask,
            now,
            stale=self._pools.stale(),
            margin_s=self._admission.margin_s(ask.budget_s),
            least=self._least_urgency(now),
        )

    def _least_urgency(self, now: float) -> Urgency:
        """Of prompts beside streams, by what comes and waits."""
        return Urgency.URGENT if self._demand.pressed(now) else self._held.least_urgency

    def _place(self, ask: PlacementRequest, plan: PlacementPlan, now: float) -> list[Assignment]:
        """Count every choice against a pair of its own; the first was planned."""
        placed: list[Assignment] = []
        try:
            for choice in range(ask.choices):
                one = one_of(ask)
                placed.append(self._take(one, self._plan(one, now) if choice else plan, now))
        except BaseException:
            for taken in placed:
                taken.release()
            raise
        return placed

    def _take(self, ask: PlacementRequest, plan: PlacementPlan, now: float) -> Assignment:
        pair = plan.pair
        if not pair.local:
            self._placement.learn(pair.prefill, ask.digests)
        kv_tokens = ask.most_tokens
        self._fairness.start(ask.tenant, ask.prompt_tokens - pair.cached_tokens, kv_tokens)
        end = partial(self._fairness.end, ask.tenant, kv_tokens=kv_tokens)
        holds = self._placement.add_load(plan, ask, now)
        return Assignment(ask, plan, holds, now, end)

    def _refusal(self, ask: PlacementRequest, reason: Reason, now: float) -> Refused:
        if asleep := self._asleep(ask):
            return self._refused(ask, Refuse(reason, self._pools.starts.left_s(asleep, now)), now)
        replicas = len(self._pools.healthy("prefill"))
        forecast = self._plan(ask, now).forecast
        verdict = self._admission.refuse(reason, ask, forecast, now, replicas=replicas)
        return self._refused(ask, verdict, now)

    def _refused(self, ask: PlacementRequest, verdict: Refuse, now: float) -> Refused:
        self._refusals.note(verdict, now)
        self._unmet.refused(verdict.reason, now)
        return Refused.by(verdict, now - ask.arrived_s)

    def _withdraw(self, waiter: WaitingRequest) -> None:
        """Who was admitted and is gone takes up no room."""
        decided = waiter.decided
        if decided.done() and not decided.cancelled() and decided.exception() is None:
            for placed in decided.result():
                placed.release()
