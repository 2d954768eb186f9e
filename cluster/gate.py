"""Where requests are admitted, wait for room, or are refused: the policies put to work.

`cluster/placement.py` says what a request would mean, `cluster/admission.py` what to do about it.
What was admitted is counted against its replicas in the same moment. Those that wait are bounded
and looked at in their order: who was told to come now, then the interactive lanes by deadline,
then the batch lane as it came.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from cluster import metrics
from cluster.admission import Admission, Admit, Reason, Refuse, Wait
from cluster.holds import Hold
from cluster.placement import Ask, Placement, Plan, one_of
from cluster.pools import Pools
from cluster.refusals import Refusals, Refused
from engine.errors import TandemError

_LOOK_S = 0.025
_AT_ONE_LOOK = 32


@dataclass(frozen=True, slots=True)
class FirstToken:
    """What is known when a first token has left: how long computing and the way back took."""

    prefill_s: float
    cached_tokens: int
    flush_s: float
    ttft_s: float


@dataclass(slots=True)
class Placed:
    """One admitted choice: its pair, and its share in their load until it is released."""

    ask: Ask
    plan: Plan
    holds: tuple[Hold, Hold]
    placed_s: float

    def prefilled(self) -> None:
        """The prompt was computed, or never will be. Idempotent."""
        self.holds[0].release()

    def release(self) -> None:
        """The choice has ended. Idempotent."""
        for hold in self.holds:
            hold.release()


@dataclass(slots=True, eq=False)
class _Waiter:
    ask: Ask
    expected: bool
    arrival: int
    decided: asyncio.Future[list[Placed]]

    @property
    def order(self) -> tuple[bool, bool, float, int]:
        ask = self.ask
        due_s = 0.0 if ask.batch else ask.arrived_s + ask.budget_s
        return ask.batch, not self.expected, due_s, self.arrival


class Gate:
    """Admits requests to the pools; at most `max_held` wait here."""

    def __init__(self, pools: Pools, placement: Placement, max_held: int) -> None:
        self._pools = pools
        self._placement = placement
        self._admission = Admission()
        self._refusals = Refusals()
        self._max_held = max_held
        self._held: list[_Waiter] = []
        self._arrivals = 0
        self._look: asyncio.TimerHandle | None = None

    @property
    def held(self) -> int:
        """Requests that wait here."""
        return len(self._held)

    async def enter(self, ask: Ask) -> list[Placed]:
        """Wait for admission; one entry for each choice, to be released. Refused, Unavailable."""
        now = time.monotonic()
        self._arrivals += 1
        loop = asyncio.get_running_loop()
        waiter = _Waiter(
            ask, self._admission.expected(ask, now), self._arrivals, loop.create_future()
        )
        behind = ask.batch and any(other.ask.batch for other in self._held)
        if not behind:
            self._decide(waiter, now)
        if not waiter.decided.done() and len(self._held) >= self._max_held:
            self._refuse(waiter, "held_full", now)
        if not waiter.decided.done():
            self._hold(waiter)
        try:
            return await waiter.decided
        except asyncio.CancelledError:
            self._withdraw(waiter)
            raise
        finally:
            if waiter in self._held:
                self._held.remove(waiter)

    def computed(self, placed: Placed, first: FirstToken) -> None:
        """A first token has left: learn what it cost, and how good the prediction was."""
        now, plan, ask = time.monotonic(), placed.plan, placed.ask
        replica = plan.pair.prefill.id
        self._placement.computed(
            replica, ask.prompt_tokens, first.cached_tokens, first.prefill_s, now
        )
        self._placement.costs.learn_flush(first.flush_s)
        placed.prefilled()
        metrics.PREDICTED_QUEUE.set(self._placement.queue_s(replica), replica=replica)
        if not ask.batch:
            metrics.PREDICTION_ERROR.observe(plan.forecast.ttft_s - first.ttft_s)
            self._admission.learn(now > plan.forecast.deadline_s + first.flush_s)

    def release(self, placed: Placed) -> None:
        """A choice has ended."""
        decode = placed.plan.pair.decode.id
        self._placement.costs.learn_stream(decode, time.monotonic() - placed.placed_s)
        placed.release()

    def _hold(self, waiter: _Waiter) -> None:
        self._held.append(waiter)
        metrics.HELD.set(len(self._held))
        if self._look is None:
            loop = asyncio.get_running_loop()
            self._look = loop.call_later(_LOOK_S, self._look_again)

    def _look_again(self) -> None:
        """Decide about those that wait; of the batch lane the first that does not fit is last."""
        self._look = None
        now = time.monotonic()
        for waiter in sorted(self._held, key=lambda waiter: waiter.order)[:_AT_ONE_LOOK]:
            self._decide(waiter, now)
            if waiter.ask.batch and not waiter.decided.done():
                break
        self._held = [waiter for waiter in self._held if not waiter.decided.done()]
        metrics.HELD.set(len(self._held))
        if self._held:
            self._look = asyncio.get_running_loop().call_later(_LOOK_S, self._look_again)

    def _decide(self, waiter: _Waiter, now: float) -> None:
        if waiter.decided.done():
            return
        try:
            plan = self._plan(waiter.ask, now)
            verdict = self._admission.judge(
                waiter.ask,
                plan.forecast,
                now,
                replicas=len(self._pools.healthy("prefill")),
                expected=waiter.expected,
            )
            if isinstance(verdict, Admit):
                waiter.decided.set_result(self._place(waiter.ask, plan, now))
            elif not isinstance(verdict, Wait):
                self._deny(waiter, verdict, now)
        except TandemError as error:
            waiter.decided.set_exception(error)

    def _plan(self, ask: Ask, now: float) -> Plan:
        return self._placement.plan(
            self._pools.healthy("prefill"),
            self._pools.healthy("decode"),
            ask,
            now,
            stale=self._pools.stale(),
            margin_s=self._admission.margin_s(ask.budget_s),
        )

    def _place(self, ask: Ask, plan: Plan, now: float) -> list[Placed]:
        """Count every choice against a pair of its own; the first was planned."""
        one, placed = one_of(ask), []
        for choice in range(ask.choices):
            mine = plan if choice == 0 else self._plan(one, now)
            if not mine.pair.local:
                self._placement.learn(mine.pair.prefill, ask.digests)
            placed.append(Placed(one, mine, self._placement.hold(mine, one, now), now))
        replica = plan.pair.prefill.id
        metrics.PREDICTED_QUEUE.set(self._placement.queue_s(replica), replica=replica)
        return placed

    def _refuse(self, waiter: _Waiter, reason: Reason, now: float) -> None:
        ask = waiter.ask
        replicas = len(self._pools.healthy("prefill"))
        forecast = self._plan(ask, now).forecast
        self._deny(
            waiter, self._admission.refuse(reason, ask, forecast, now, replicas=replicas), now
        )

    def _deny(self, waiter: _Waiter, verdict: Refuse, now: float) -> None:
        self._refusals.note(verdict, now)
        waiter.decided.set_exception(Refused.by(verdict))

    def _withdraw(self, waiter: _Waiter) -> None:
        """Who was admitted and is gone takes up no room."""
        decided = waiter.decided
        if decided.done() and not decided.cancelled() and decided.exception() is None:
            for placed in decided.result():
                placed.release()
