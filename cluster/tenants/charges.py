"""The charges to tenants by router, from which each router knows the sum of all. Pure.

There is a grow-only counter for each router and tenant (Shapiro et al., "Conflict-free Replicated
Data Types", 2011). A router publishes its total charges. Its peers add the increase since they
read last. A reading that is lost, late or repeated does not change the sum.
"""

from __future__ import annotations

from collections.abc import Mapping

# Bound: publications after which a total that has not grown is forgotten. All have read it then.
_KEPT = 1200


class Charges:
    """This router's totals, and the totals that were read last of each peer."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = {}
        self._grown: dict[str, int] = {}
        self._publications = 0
        self._read: dict[str, Mapping[str, float]] = {}

    def add(self, tenant: str, amount: float) -> None:
        """Charge the tenant an amount here."""
        self._totals[tenant] = self._totals.get(tenant, 0.0) + amount
        self._grown[tenant] = self._publications

    def publish(self) -> dict[str, float]:
        """The totals to publish."""
        self._publications += 1
        old = [name for name, at in self._grown.items() if self._publications - at > _KEPT]
        for name in old:
            del self._totals[name], self._grown[name]
        return dict(self._totals)

    def receive(self, others: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """The charges of the peers since they were read last, by tenant.

        A new peer counts from now on. A total that was forgotten, or is smaller than before, began
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
