"""The waiting queue: requests that wait for admission, and their order. Pure.

The order is: the interactive lanes before the batch lane, then promised retries, then the tenant
that was served least, then the shortest prompt. In the batch lane the oldest request comes first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from cluster.admission.assignment import Assignment
from cluster.admission.policy import Reason
from cluster.admission.queue_position import QueuePositionListener
from cluster.placement.types import PlacementRequest
from cluster.tenants.need import Need
from engine.errors import TandemError
from engine.types.urgency import Urgency

# The position in the queue; the arrival makes it unique.
Order = tuple[bool, bool, float, int, float]
# How a wait ends: the assignments of all choices, or the error that the client gets.
Outcome = list[Assignment] | TandemError


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """One request that waits for admission, until `decide` is called.

    `tokens_left` are the prompt tokens to compute, less what is known to be cached. A `promised`
    request was refused before and told to come now. `arrival` counts requests. `on_decided` is
    called once. `alone_s` are the seconds of all prefill replicas for it, None until one is there
    to predict them. A `feasible` request would be in time if it were assigned now, and would make
    no other one late. It was last planned at `planned_s`, and must be assigned by `assign_by_s`.
    While it waits for a batch slot, `slot_s` are the seconds until the pool has one for it. When it
    came to the queue, `queued_before` requests were before it, and waited for `reason_before`.
    """

    request: PlacementRequest
    tokens_left: int
    promised: bool
    arrival: int
    on_decided: Callable[[], None]
    listener: QueuePositionListener | None = None
    reason: Reason | None = None
    alone_s: float | None = None
    feasible: bool = True
    planned_s: float = float("-inf")
    assign_by_s: float = float("-inf")
    slot_s: float = 0.0
    queued_before: int | None = None
    reason_before: Reason | None = None
    outcome: Outcome | None = None

    @property
    def decided(self) -> bool:
        """Whether the request was admitted or refused."""
        return self.outcome is not None

    @property
    def capped(self) -> bool:
        """Whether the request waits for other requests of its own tenant."""
        return self.reason is not None and self.reason.startswith("tenant_")

    @property
    def need(self) -> Need:
        """The request's use of its tenant's caps."""
        return need_of(self.request)

    def decide(self, outcome: Outcome) -> None:
        """End the wait with this outcome."""
        self.outcome = outcome
        self.on_decided()

    def result(self) -> list[Assignment]:
        """The assignments of a decided request; raises the error where it was not admitted."""
        if isinstance(self.outcome, TandemError):
            raise self.outcome
        assert self.outcome is not None
        return self.outcome

    def withdraw(self) -> None:
        """Release the assignments of a request whose client has gone."""
        if isinstance(self.outcome, list):
            for assignment in self.outcome:
                assignment.release()

    def waits_for(self, reason: Reason) -> None:
        """Note why the request waits. It delays later requests only if it waits for computing."""
        self.reason = reason
        known = reason != "starting" or self.alone_s is not None
        if reason != "ttft" and known:
            self.alone_s = 0.0


class WaitingQueue:
    """The waiting requests; `served` says how much a tenant was served, by weight."""

    def __init__(self, served: Callable[[str], float]) -> None:
        self._served = served
        # In order, as it was when `in_order` was last called.
        self._ranked: list[tuple[Order, WaitingRequest]] = []

    def __len__(self) -> int:
        return len(self._ranked)

    def __iter__(self) -> Iterator[WaitingRequest]:
        return (request for _, request in self._ranked)

    def add(self, request: WaitingRequest) -> None:
        """Put a request in the queue, and note how many are before it, and what they wait for."""
        order = self._order(request)
        place = bisect_left(self._ranked, order, key=itemgetter(0))
        before = [other for _, other in self._ranked[:place]]
        request.queued_before, request.reason_before = place, _reason_of(before, request)
        self._ranked.insert(place, (order, request))

    def remove(self, request: WaitingRequest) -> None:
        """Take a request out of the queue, if it is there."""
        self._ranked = [entry for entry in self._ranked if entry[1] is not request]

    def drop_decided(self) -> None:
        """Take out the requests that were decided."""
        self._ranked = [entry for entry in self._ranked if not entry[1].decided]

    def gives_way(self, newcomer: WaitingRequest) -> WaitingRequest | None:
        """The request that should leave a full queue to this newcomer, if there is one.

        It is one of the batch lane, or the last one of the tenant that has most waiting, as in
        stochastic fairness queueing (McKenney, 1990). A promised retry never leaves for a request
        of its own lane, because it would be promised the same again, for ever.
        """
        others = [one for one in self if not one.decided]
        if not newcomer.request.batch and (batch := [o for o in others if o.request.batch]):
            return max(batch, key=self._order)
        lane = newcomer.request.batch
        others = [one for one in others if one.request.batch == lane and not one.promised]
        waiting = Counter(one.request.tenant for one in others)
        if not waiting:
            return None
        tenant, most = waiting.most_common(1)[0]
        if most <= waiting[newcomer.request.tenant] + 1:
            return None
        return max((one for one in others if one.request.tenant == tenant), key=self._order)

    def in_order(self) -> list[WaitingRequest]:
        """All waiting requests, the first one first."""
        self._ranked = sorted(((self._order(one), one) for one in self), key=itemgetter(0))
        return list(self)

    def any_before(self, newcomer: WaitingRequest) -> bool:
        """Whether a request goes first: of a tenant that was served less, or earlier batch work."""
        if not self._ranked:
            return False
        request, served = newcomer.request, self._served(newcomer.request.tenant)
        return not newcomer.promised and any(
            other.request.batch if request.batch else self._served(other.request.tenant) < served
            for other in self
            if request.batch or not other.request.batch
        )

    def ahead_s(self, newcomer: WaitingRequest) -> float:
        """Seconds of computing of the requests that go before the newcomer."""
        if not self._ranked:
            return 0.0
        order = self._order(newcomer)
        return sum(other.alone_s or 0.0 for other in self if self._order(other) < order)

    def work_before(self, tenant: str, tokens: int) -> tuple[float, float]:
        """The seconds of computing, and of waiting for slots, before a newcomer of so many tokens.

        The order is that of the last poll. The newcomer is no promised retry, and not of the batch
        lane.
        """
        place: Order = (False, True, self._served(tenant), tokens, float("inf"))
        alone_s = slots_s = 0.0
        for order, other in self._ranked:
            if order > place:
                break
            alone_s += other.alone_s or 0.0
            slots_s += other.slot_s
        return alone_s, slots_s

    @property
    def alone_s(self) -> float:
        """Seconds that all prefill replicas together take for the prompts that wait."""
        return sum(one.alone_s or 0.0 for one in self)

    @property
    def least_urgency(self) -> Urgency:
        """The least urgency of prompts that are computed while others wait for computing.

        Requests of the batch lane raise no urgency.
        """
        urgencies = (
            Urgency.PRESSED if one.feasible else Urgency.URGENT
            for one in self
            if one.reason == "ttft" and not (one.request.batch or one.decided)
        )
        return max(urgencies, default=Urgency.PROMPTS)

    def _order(self, waiting: WaitingRequest) -> Order:
        request = waiting.request
        if request.batch:
            return True, not waiting.promised, 0.0, 0, waiting.arrival
        served = self._served(request.tenant)
        return False, not waiting.promised, served, waiting.tokens_left, waiting.arrival


def _reason_of(before: Sequence[WaitingRequest], newcomer: WaitingRequest) -> Reason | None:
    """What the first of these requests waits for, in the newcomer's lane if one waits there."""
    batch = newcomer.request.batch
    in_lane = next((one for one in before if one.request.batch == batch), None)
    first = in_lane or next(iter(before), None)
    return None if first is None else first.reason or first.reason_before


def need_of(request: PlacementRequest) -> Need:
    """A request's use of its tenant's caps."""
    return Need(request.choices, request.prompt_tokens, request.choices * request.most_tokens)
