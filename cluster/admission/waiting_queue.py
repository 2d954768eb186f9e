"""Those that wait at the gate, and who of them goes first.

The interactive lanes before the batch lane, of each who was told to come now, then the tenant that
was served the least, then the shortest or, batch, who came first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from cluster.admission.waiting_request import WaitingRequest
from engine.types.urgency import Urgency


class WaitingQueue:
    """The waiters; `served` says how much a tenant has had."""

    def __init__(self, served: Callable[[str], float]) -> None:
        self._served = served
        self._waiters: list[WaitingRequest] = []

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[WaitingRequest]:
        return iter(self._waiters)

    def add(self, waiter: WaitingRequest) -> None:
        """It waits from now on."""
        self._waiters.append(waiter)

    def remove(self, waiter: WaitingRequest) -> None:
        """It waits no longer, if it did."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    def drop_decided(self) -> None:
        """Those that were decided wait no longer."""
        self._waiters = [waiter for waiter in self._waiters if not waiter.decided.done()]

    def gives_way(self, waiter: WaitingRequest) -> WaitingRequest | None:
        """Who should leave its place to this newcomer: of the batch lane, or of whom has most.

        As stochastic fairness queueing has it (McKenney, 1990). Nobody that was told to come for
        one of its own lane: that would be promised the same again, for ever.
        """
        others = [one for one in self._waiters if not one.decided.done()]
        if not waiter.ask.batch and (batch := [one for one in others if one.ask.batch]):
            return max(batch, key=self._order)
        others = [o for o in others if o.ask.batch == waiter.ask.batch and not o.expected]
        places = Counter(one.ask.tenant for one in others)
        if not places:
            return None
        tenant, most = places.most_common(1)[0]
        if most <= places[waiter.ask.tenant] + 1:
            return None
        return max((one for one in others if one.ask.tenant == tenant), key=self._order)

    def in_order(self) -> list[WaitingRequest]:
        """All of them, who goes first to begin with."""
        return sorted(self._waiters, key=self._order)

    def any_before(self, waiter: WaitingRequest) -> bool:
        """Whether somebody waits who goes first: a tenant that had less, or batch work before."""
        ask, served = waiter.ask, self._served(waiter.ask.tenant)
        return not waiter.expected and any(
            other.ask.batch if ask.batch else self._served(other.ask.tenant) < served
            for other in self._waiters
            if ask.batch or not other.ask.batch
        )

    def ahead_s(self, waiter: WaitingRequest) -> float:
        """The computing of those that go before it."""
        order = self._order(waiter)
        return sum(other.alone_s or 0.0 for other in self._waiters if self._order(other) < order)

    @property
    def least_urgency(self) -> Urgency:
        """Of prompts that are computed while these wait for it; the batch lane is in no urgency."""
        urgencies = (
            Urgency.PRESSED if one.fits else Urgency.URGENT
            for one in self._waiters
            if one.reason == "ttft" and not (one.ask.batch or one.decided.done())
        )
        return max(urgencies, default=Urgency.PROMPTS)

    def _order(self, waiter: WaitingRequest) -> tuple[bool, bool, float, int, int]:
        ask = waiter.ask
        if ask.batch:
            return True, not waiter.expected, 0.0, 0, waiter.arrival
        served = self._served(ask.tenant)
        return False, not waiter.expected, served, waiter.left, waiter.arrival
