"""Decides whether a request is admitted, waits or is refused. Pure.

The policy keeps seven promises:

1. No admitted request is predicted late. A first token must be due a learned margin after the
   time that is predicted for it (`"ttft"` in `_OBSTACLES`).
2. No admitted request makes the tokens of others too slow (`"itl"`).
3. No request is admitted whose KV might find no block or no batch slot (`"kv_blocks"`,
   `"decode_batch"`).
4. A verdict comes within half of the TTFT budget (`decided_by`).
5. A refusal names a time that holds. `RetrySchedule` promises each refused request a time behind
   the work before it. A request that returns then goes first, and no new request may make it late.
6. Tenants are fair. The waiting queue serves the tenant first that was served least
   (`WaitingQueue`), and `FairShare` keeps the caps.
7. The batch lane waits, and is never refused for lateness. It leaves a quarter of the blocks, the
   batch slots and the queues to the other lanes (`engine/types/lane_quota.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cluster.admission.early_refusal import ArrivingRequest, WorkAhead
from cluster.admission.retry_schedule import SOONEST_S, RetrySchedule
from cluster.placement.types import Forecast, PlacementRequest

Reason = Literal[
    "ttft",
    "itl",
    "kv_blocks",
    "decode_batch",
    "batch_prompts",
    "queue_full",
    "tenant_concurrent",
    "tenant_waiting",
    "tenant_kv",
    "starting",
]
# Promise: the part of a TTFT budget within which a request is admitted or refused.
_DECIDED_IN = 0.5
# Tuned for verdicts in time: a request waits behind others only if it was at the socket for at most
# this part of the time to its verdict. A router that reads later has no time for its queue.
_READ_IN = 0.5
# Bound: how late the last decision may come, as a part of the budget and in seconds.
_LATENESS = 0.05
_MOST_LATENESS_S = 0.05
# Tuned for few useless waits: a request waits only if it is predicted within so many budgets.
_WORTH_A_WAIT = 1.5
# Tuned for goodput under prediction errors: the part of a budget that is kept as margin.
_LEAST_MARGIN = 0.08
_MOST_MARGIN = 0.5
# Tuned for the same: the part of admitted requests that may be late, and how fast the margin moves.
_LATE = 0.02
_STEP = 0.05
# Tuned for short prompts: below so much queued work, in budgets, a request is assigned at once.
_SHALLOW = 0.1
# Tuned for retries: the expected number of promised retries that one new request may make late.
_LATE_PROMISES = 0.5

# Each reason not to admit a request now, in the order in which they are checked. A decode
# replica without requests takes any request, because no wait would make that one smaller.
# `step_s` is the decode step with the request; `itl_s` is the least ITL budget of that replica's
# requests and of this one, whose own budget is `request.itl_s`, as its endpoint is configured.
_OBSTACLES: tuple[tuple[Reason, Callable[[PlacementRequest, Forecast], bool]], ...] = (
    ("kv_blocks", lambda request, found: found.requests > 0 and found.blocks_shortfall > 0),
    ("decode_batch", lambda request, found: found.requests > 0 and found.slots_shortfall > 0),
    ("itl", lambda request, found: found.requests > 0 and found.step_s > found.itl_s),
    ("batch_prompts", lambda request, found: request.batch and found.prompts_shortfall > 0),
    ("ttft", lambda request, found: not request.batch and not found.feasible),
)


@dataclass(frozen=True, slots=True)
class Admit:
    """The request may go to the replicas now."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The request may become feasible. It is judged again, and decided at `until_s`."""

    reason: Reason
    until_s: float


@dataclass(frozen=True, slots=True)
class Refuse:
    """There is no capacity for the request. It should be admitted after `retry_after_s`."""

    reason: Reason
    retry_after_s: float


Verdict = Admit | Wait | Refuse


class Admission:
    """Judges forecasts. The `replicas` that compute prompts share the promised work."""

    def __init__(self) -> None:
        self._retries = RetrySchedule()
        self._margins: dict[float, float] = {}  # by budget, of which each endpoint has one

    def margin_s(self, budget_s: float) -> float:
        """Seconds of a budget that are kept for errors of the prediction."""
        return max(self._margins.get(budget_s, 0.0), _LEAST_MARGIN) * budget_s

    def learn(self, late: bool, budget_s: float) -> None:
        """Note whether the first token of an admitted request with that budget was late.

        The margin settles where the wanted share is late (Robbins and Monro, 1951). The margin is
        learned from 0 up, so that one late token after many that were in time changes nothing.
        """
        margin = self._margins.get(budget_s, 0.0) + _STEP * ((1.0 if late else 0.0) - _LATE)
        self._margins[budget_s] = min(max(0.0, margin), _MOST_MARGIN)

    def claim_retry(self, request: PlacementRequest, now: float) -> bool:
        """Whether the request was refused before and told to come now. True only once.

        A request that claimed its retry must be settled when it is decided or gone.
        """
        return self._retries.claim(request.key, now)

    def settle_retry(self, request: PlacementRequest) -> None:
        """Note that a request which claimed its retry waits no longer."""
        self._retries.settle(request.key)

    def judge(
        self,
        request: PlacementRequest,
        forecast: Forecast,
        now: float,
        *,
        replicas: int = 1,
        promised: bool = False,
        ahead_s: float = 0.0,
        may_wait: bool = True,
    ) -> Verdict:
        """Judge a request. One with a `promised` retry goes before the others.

        `ahead_s` are the seconds of computing of the waiting requests that go first. `may_wait`:
        the queue has capacity, so that a feasible request may still be assigned later.
        """
        reason = self._obstacle(request, forecast, now, promised, replicas)
        if reason is None and may_wait and not (request.batch or promised):
            reason = self._early(request, forecast, now, ahead_s)
        if reason is None:
            return Admit()
        if request.batch:
            return Wait(reason, float("inf"))
        until_s = decided_by(request)
        if now < until_s and _worth_a_wait(reason, request, forecast):
            return Wait(reason, until_s)
        return self.refuse(reason, request, forecast, now, replicas=replicas)

    def wait(
        self, reason: Reason, request: PlacementRequest, forecast: Forecast, now: float
    ) -> Verdict:
        """Judge a request that is feasible but must wait for another reason."""
        until_s = decided_by(request)
        if now < until_s:
            return Wait(reason, until_s)
        return self.refuse(reason, request, forecast, now)

    def until_started(self, request: PlacementRequest, left_s: float, now: float) -> Wait | Refuse:
        """Judge a request whose pools sleep and are predicted to be awake in `left_s`."""
        until_s = decided_by(request)
        if now + left_s <= until_s:
            return Wait("starting", until_s)
        return Refuse("starting", left_s)

    def refuse(
        self,
        reason: Reason,
        request: PlacementRequest,
        forecast: Forecast,
        now: float,
        *,
        replicas: int = 1,
    ) -> Refuse:
        """Refuse a request and promise it a retry when the work before it will be done.

        A tenant at its caps waits for its own requests alone, so its retry moves no other one.
        """
        wait_s, seconds = forecast.work_s, forecast.added_s / replicas
        if reason != "ttft":
            # A batch slot is free when another request has ended.
            wait_s = max(wait_s, forecast.interval_s)
        if reason.startswith("tenant_"):
            return Refuse(reason, max(wait_s, SOONEST_S))
        if reason not in ("ttft", "queue_full"):
            seconds = max(seconds, forecast.interval_s)
        left_s = forecast.deadline_s - request.arrived_s - self.margin_s(request.budget_s)
        slack_s = float("inf") if request.batch else max(0.0, left_s - forecast.alone_s)
        earliest_s = now + max(wait_s, SOONEST_S)
        at_s = self._retries.promise(request.key, seconds, slack_s, earliest_s, now)
        return Refuse(reason, at_s - now)

    def wait_s(
        self,
        request: PlacementRequest,
        forecast: Forecast,
        before: int,
        now: float,
        *,
        replicas: int = 1,
    ) -> float:
        """Seconds that a request is predicted to wait, behind `before` requests like itself."""
        reason = self._obstacle(request, forecast, now, False, replicas)
        first_s, each_s = forecast.interval_s, forecast.interval_s
        if reason == "ttft":
            within_s = max(request.budget_s - self.margin_s(request.budget_s), forecast.alone_s)
            first_s = forecast.work_s + forecast.alone_s - within_s
            each_s = forecast.added_s / replicas
        return (max(first_s, SOONEST_S) if reason is not None else 0.0) + before * each_s

    def refuse_early(
        self,
        arrival: ArrivingRequest,
        ahead: WorkAhead,
        now: float,
        replicas: Callable[[], int] = lambda: 1,
    ) -> Refuse | None:
        """Refuse a request behind too much work, or read late and behind others; None: plan it."""
        if arrival.batch or self._retries.is_due(arrival.key, now):
            return None
        until_s = decided_by(arrival)
        slots = ahead.too_many(until_s, now)
        late = ahead.others_wait and _read_late(arrival, until_s, now)
        if not (slots or late or ahead.too_long(arrival, now, _WORTH_A_WAIT)):
            return None
        wait_s, seconds = ahead.placed_s, ahead.alone_s / replicas()
        if slots:
            wait_s, seconds = max(wait_s, ahead.interval_s), max(seconds, ahead.interval_s)
        slack_s = max(0.0, arrival.budget_s - self.margin_s(arrival.budget_s) - ahead.alone_s)
        earliest_s = now + max(wait_s, SOONEST_S)
        at_s = self._retries.promise(arrival.key, seconds, slack_s, earliest_s, now)
        return Refuse("decode_batch" if slots else "ttft", at_s - now)

    def _early(
        self, request: PlacementRequest, forecast: Forecast, now: float, ahead_s: float
    ) -> Reason | None:
        """The reason to assign a feasible request later, so that shorter ones can still pass."""
        if ahead_s == 0.0 and forecast.work_s <= _SHALLOW * request.budget_s:
            return None
        if now < assign_by(request, forecast, self.margin_s(request.budget_s)):
            return "ttft"
        end_s = request.arrived_s + forecast.ttft_s + ahead_s
        return None if end_s <= forecast.deadline_s else "ttft"

    def _obstacle(
        self,
        request: PlacementRequest,
        forecast: Forecast,
        now: float,
        promised: bool,
        replicas: int,
    ) -> Reason | None:
        """The first obstacle to the request; a new request must not make promised retries late."""
        for reason, stands in _OBSTACLES:
            if stands(request, forecast):
                return reason
        if request.batch or promised:
            return None
        begin_s, seconds = now + forecast.work_s, forecast.added_s / replicas
        return "ttft" if self._retries.late(begin_s, seconds, now) > _LATE_PROMISES else None


def assign_by(request: PlacementRequest, forecast: Forecast, margin_s: float) -> float:
    """When a request that waits must be assigned, or decided."""
    return min(decided_by(request), forecast.deadline_s - margin_s - forecast.alone_s)


def decided_by(request: PlacementRequest | ArrivingRequest) -> float:
    """The latest time of a decision about a request (monotonic seconds); never for batch."""
    if request.batch:
        return float("inf")
    late_s = min(_LATENESS * request.budget_s, _MOST_LATENESS_S)
    return request.arrived_s + _DECIDED_IN * request.budget_s - late_s


def _read_late(arrival: ArrivingRequest, until_s: float, now: float) -> bool:
    """Whether a request was at the socket for too much of the time to its verdict."""
    return now - arrival.arrived_s > _READ_IN * (until_s - arrival.arrived_s)


def _worth_a_wait(reason: Reason, request: PlacementRequest, forecast: Forecast) -> bool:
    """Whether a wait may help. A prompt queue gets no shorter than the time that passes."""
    if reason != "ttft":
        return forecast.feasible
    within_s = max(request.budget_s, forecast.deadline_s - request.arrived_s)
    return forecast.ttft_s <= _WORTH_A_WAIT * within_s
