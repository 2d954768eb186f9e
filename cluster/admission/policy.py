"""Who is admitted, who is held, who is refused and when to come back. Pure.

The prediction covers the whole path: the first token within its budget (queue, prefill and first
flush) without making another late, its place in the decode batch and the token gap with it, and
the blocks that its answer may need. What does not fit is held while it may come to fit, at most
for half its budget, or refused with a time of its own: when all that is before it will have been
computed. Those who come back then go first, and nobody is let in who would make one of them late.

Work of the batch lane is never refused for being late: it waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cluster.admission.retry_schedule import RetrySchedule
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
# Of a budget: what may be decided in, what a prediction may be over it for a wait to be of use,
# what is kept for errors of the prediction, and the queue that keeps a replica at work.
_DECIDED_IN = 0.5
_WORTH_A_WAIT = 1.5
_LEAST_MARGIN = 0.08
_MOST_MARGIN = 0.25
_SHALLOW = 0.1
_SOONEST_S = 0.05
# How many that were told to come back may be late for one new arrival, as expected.
_LATE_PROMISES = 0.5
# What is decided at the last moment is decided late; of a budget, and in seconds.
_LATENESS = 0.05
_MOST_LATENESS_S = 0.05
# The share of admitted requests that may be late, and by how much of a budget one changes the
# margin.
_LATE = 0.02
_STEP = 0.05


@dataclass(frozen=True, slots=True)
class Admit:
    """It may go to the replicas now."""


@dataclass(frozen=True, slots=True)
class Wait:
    """It may come to fit; to be asked again, and to be decided at `until_s`."""

    reason: Reason
    until_s: float


@dataclass(frozen=True, slots=True)
class Refuse:
    """There is no room for it; predicted to be admitted in `retry_after_s`."""

    reason: Reason
    retry_after_s: float


Verdict = Admit | Wait | Refuse


class Admission:
    """Judges forecasts. `replicas` that compute prompts share what is reserved."""

    def __init__(self) -> None:
        self._reserved = RetrySchedule()
        self._margins: dict[float, float] = {}  # by budget, of which each endpoint has one

    def margin_s(self, budget_s: float) -> float:
        """What is kept of a budget for errors of the prediction."""
        return max(self._margins.get(budget_s, 0.0), _LEAST_MARGIN) * budget_s

    def learn(self, late: bool, budget_s: float) -> None:
        """A first token of an admitted request with that budget came, in time or late.

        The margin settles where the wanted share is late (Robbins and Monro, 1951). It is learned
        from 0 up, so that one late token after many that came in time changes nothing.
        """
        margin = self._margins.get(budget_s, 0.0) + _STEP * ((1.0 if late else 0.0) - _LATE)
        self._margins[budget_s] = min(max(0.0, margin), _MOST_MARGIN)

    def expected(self, ask: PlacementRequest, now: float) -> bool:
        """Whether this request was refused before and told to come now. Says so only once.

        Whoever was expected is to be settled when it is decided, or gone.
        """
        return self._reserved.claim(ask.key, now)

    def settle(self, ask: PlacementRequest) -> None:
        """One that was expected waits no longer."""
        self._reserved.settle(ask.key)

    def judge(
        self,
        ask: PlacementRequest,
        forecast: Forecast,
        now: float,
        *,
        replicas: int = 1,
        expected: bool = False,
        ahead_s: float = 0.0,
        late: bool = True,
    ) -> Verdict:
        """What to do with a request. One that was `expected` goes before those that were not.

        `ahead_s` is the computing of those that wait here and go first. `late`: there is room for
        it to wait, so it may be given its place later, though it fits.
        """
        reason = self._obstacle(ask, forecast, now, expected, replicas)
        if reason is None and late and not (ask.batch or expected):
            reason = self._early(ask, forecast, now, ahead_s)
        if reason is None:
            return Admit()
        if ask.batch:
            return Wait(reason, float("inf"))
        until_s = decided_by(ask)
        if now < until_s and _worth_a_wait(reason, ask, forecast):
            return Wait(reason, until_s)
        return self.refuse(reason, ask, forecast, now, replicas=replicas)

    def wait(
        self, reason: Reason, ask: PlacementRequest, forecast: Forecast, now: float
    ) -> Verdict:
        """What to do with a request that fits but must wait for another reason."""
        until_s = decided_by(ask)
        return Wait(reason, until_s) if now < until_s else self.refuse(reason, ask, forecast, now)

    def until_started(self, ask: PlacementRequest, left_s: float, now: float) -> Wait | Refuse:
        """What to do with a request that nobody is there for yet, for `left_s` as predicted."""
        until_s = decided_by(ask)
        if now + left_s <= until_s:
            return Wait("starting", until_s)
        return Refuse("starting", left_s)

    def refuse(
        self,
        reason: Reason,
        ask: PlacementRequest,
        forecast: Forecast,
        now: float,
        *,
        replicas: int = 1,
    ) -> Refuse:
        """Give a request a time to come back: when what is before it will have been computed.

        Whose tenant has all that it may have waits for nobody else, and is in nobody's way.
        """
        wait_s, seconds = forecast.work_s, forecast.alone_s / replicas
        if reason != "ttft":
            # A place is free when somebody has ended.
            wait_s = max(wait_s, forecast.interval_s)
        if reason.startswith("tenant_"):
            return Refuse(reason, max(wait_s, _SOONEST_S))
        if reason not in ("ttft", "queue_full"):
            seconds = max(seconds, forecast.interval_s)
        left_s = forecast.deadline_s - ask.arrived_s - self.margin_s(ask.budget_s)
        slack_s = float("inf") if ask.batch else max(0.0, left_s - forecast.alone_s)
        earliest_s = now + max(wait_s, _SOONEST_S)
        at_s = self._reserved.reserve(ask.key, seconds, slack_s, earliest_s, now)
        return Refuse(reason, at_s - now)

    def wait_s(
        self,
        ask: PlacementRequest,
        forecast: Forecast,
        before: int,
        now: float,
        *,
        replicas: int = 1,
    ) -> float:
        """For how long a held request is predicted to wait on, behind `before` that are like it."""
        reason = self._obstacle(ask, forecast, now, False, replicas)
        first_s, each_s = forecast.interval_s, forecast.interval_s
        if reason == "ttft":
            room_s = max(ask.budget_s - self.margin_s(ask.budget_s), forecast.alone_s)
            first_s = forecast.work_s + forecast.alone_s - room_s
            each_s = forecast.alone_s / replicas
        return (max(first_s, _SOONEST_S) if reason is not None else 0.0) + before * each_s

    def _early(
        self, ask: PlacementRequest, forecast: Forecast, now: float, ahead_s: float
    ) -> Reason | None:
        """Whether it need not have its place yet, so that shorter ones which come still can."""
        if ahead_s == 0.0 and forecast.work_s <= _SHALLOW * ask.budget_s:
            return None
        # The last moment in which it could still be in time, on a replica that is done by then.
        last_s = forecast.deadline_s - self.margin_s(ask.budget_s) - forecast.alone_s
        if now < min(decided_by(ask), last_s):
            return "ttft"
        end_s = ask.arrived_s + forecast.ttft_s + ahead_s
        return None if end_s <= forecast.deadline_s else "ttft"

    def _obstacle(
        self, ask: PlacementRequest, forecast: Forecast, now: float, expected: bool, replicas: int
    ) -> Reason | None:
        if forecast.requests and forecast.blocks_shortfall:
            return "kv_blocks"
        if forecast.requests and forecast.slots_shortfall:
            return "decode_batch"
        if forecast.requests and forecast.step_s > forecast.itl_s:
            return "itl"
        if ask.batch:
            return "batch_prompts" if forecast.prompts_shortfall else None
        if not forecast.feasible:
            return "ttft"
        if expected:
            return None
        late = self._reserved.late(now + forecast.work_s, forecast.alone_s / replicas, now)
        return "ttft" if late > _LATE_PROMISES else None


def decided_by(ask: PlacementRequest) -> float:
    """When a request is admitted or refused at the latest; one of the batch lane waits for ever."""
    if ask.batch:
        return float("inf")
    late_s = min(_LATENESS * ask.budget_s, _MOST_LATENESS_S)
    return ask.arrived_s + _DECIDED_IN * ask.budget_s - late_s


def _worth_a_wait(reason: Reason, ask: PlacementRequest, forecast: Forecast) -> bool:
    """Whether a wait may help; a queue that is too long gets no shorter than the time left."""
    if reason != "ttft":
        return forecast.feasible
    room_s = max(ask.budget_s, forecast.deadline_s - ask.arrived_s)
    return forecast.ttft_s <= _WORTH_A_WAIT * room_s
