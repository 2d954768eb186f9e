"""What tenants were charged, by router, so that each router's counters are those of all. Pure.

A grow-only counter per router and tenant (Shapiro et al., "Conflict-free Replicated Data Types",
2011): a router publishes what it has charged so far, whoever reads it adds what is new since it
read last. Readings that were lost, came twice or late change nothing of the sum.
"""

from __future__ import annotations

from collections.abc import Mapping

# A total that has not grown for so many sayings is forgotten; by then all have read it.
_KEPT = 1200


class Charges:
    """This router's totals, and the last ones that were read of each other router."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = {}
        self._grown: dict[str, int] = {}
        self._sayings = 0
        self._read: dict[str, Mapping[str, float]] = {}

    def add(self, tenant: str, amount: float) -> None:
        """This router has charged the tenant so much."""
        self._totals[tenant] = self._totals.get(tenant, 0.0) + amount
        self._grown[tenant] = self._sayings

    def say(self) -> dict[str, float]:
        """The totals to publish."""
        self._sayings += 1
        old = [name for name, at in self._grown.items() if self._sayings - at > _KEPT]
        for name in old:
            del self._totals[name], self._grown[name]
        return dict(self._totals)

    def hear(self, others: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """What the others charged since they were heard last, by tenant.

        One that is new counts from now on. One that was forgotten, or is less than it was, began
        at 0 again.
        """
        new: dict[str, float] = {}
        for router, totals in others.items():
            before = self._read.get(router)
            if before is None:
                continue
            for tenant, total in totals.items():
                had = before.get(tenant, 0.0)
                grown = total - had if total >= had else total
                if grown > 0:
                    new[tenant] = new.get(tenant, 0.0) + grown
        self._read = {router: dict(totals) for router, totals in others.items()}
        return new
