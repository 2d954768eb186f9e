"""Who goes first among tenants, and how much one may have. Pure.

A virtual token counter (Sheng et al., "Fairness in Serving Large Language Models", 2024): each
tenant is charged the tokens it is served, divided by its weight, and the one with the smallest
counter goes first. A tenant that comes back is lifted to the smallest of those that are here, as
nobody saves up service by staying away.

Counts are those of one router.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from engine.config import require

# An output token costs about that many prompt tokens (the paper's weights).
_OUTPUT_COST = 2.0

Cap = Literal["tenant_concurrent", "tenant_waiting"]


@dataclass(frozen=True, slots=True)
class TenantConfig:
    """What one tenant may have in a router: requests at once, and prompt tokens that wait.

    Those of twice the `weight` are served twice as much while both have requests waiting.
    """

    max_concurrent: int = 1024
    max_waiting_tokens: int = 1_000_000
    weight: float = 1.0

    def __post_init__(self) -> None:
        require(self.max_concurrent >= 1, "max_concurrent must be at least 1")
        require(self.max_waiting_tokens >= 1, "max_waiting_tokens must be at least 1")
        require(self.weight > 0, "weight must be positive")


@dataclass(slots=True)
class _Tenant:
    config: TenantConfig
    served: float = 0.0
    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0

    @property
    def here(self) -> bool:
        return self.running > 0 or self.waiting > 0


class Fairness:
    """Counters and caps by tenant; one without an entry in `tenants` has that of `default`."""

    def __init__(self, tenants: Mapping[str, TenantConfig]) -> None:
        self._configs = dict(tenants)
        self._tenants: dict[str, _Tenant] = {}
        self._floor = 0.0

    def __len__(self) -> int:
        return len(self._tenants)

    def served(self, tenant: str) -> float:
        """What the tenant was served, by weight; the smallest goes first."""
        known = self._tenants.get(tenant)
        return self._floor if known is None else known.served

    def cap(self, tenant: str, requests: int) -> Cap | None:
        """The cap that so many more requests of this tenant would exceed."""
        known = self._tenants.get(tenant)
        running = 0 if known is None else known.running
        return (
            "tenant_concurrent"
            if running + requests > self._config(tenant).max_concurrent
            else None
        )

    def wait(self, tenant: str, tokens: int) -> Cap | None:
        """A request of that many prompt tokens begins to wait, unless it exceeds the cap."""
        known = self._enter(tenant)
        if known.waiting_tokens + tokens > known.config.max_waiting_tokens:
            self._tidy(tenant)
            return "tenant_waiting"
        known.waiting += 1
        known.waiting_tokens += tokens
        return None

    def leave(self, tenant: str, tokens: int) -> None:
        """A request no longer waits."""
        known = self._tenants[tenant]
        known.waiting -= 1
        known.waiting_tokens -= tokens
        self._tidy(tenant)

    def start(self, tenant: str, tokens: int) -> None:
        """A request is served: it is charged its prompt."""
        known = self._enter(tenant)
        known.running += 1
        known.served += tokens / known.config.weight
        self._lift()

    def end(self, tenant: str, output_tokens: int) -> None:
        """A request has ended: it is charged its answer."""
        known = self._tenants[tenant]
        known.running -= 1
        known.served += _OUTPUT_COST * output_tokens / known.config.weight
        self._tidy(tenant)

    def _config(self, tenant: str) -> TenantConfig:
        return self._configs.get(tenant) or self._configs.get("default") or TenantConfig()

    def _enter(self, tenant: str) -> _Tenant:
        known = self._tenants.get(tenant)
        if known is None:
            known = self._tenants[tenant] = _Tenant(self._config(tenant), self._floor)
        if not known.here:
            known.served = max(known.served, self._floor)
        return known

    def _lift(self) -> None:
        """The floor rises with the smallest counter of those that are here."""
        here = [one.served for one in self._tenants.values() if one.here]
        self._floor = max(self._floor, min(here, default=self._floor))

    def _tidy(self, tenant: str) -> None:
        """Forget those that have gone and have had no more than one that is new."""
        self._lift()
        if self._tenants[tenant].here:
            return
        here = any(one.here for one in self._tenants.values())
        self._tenants = {
            name: one
            for name, one in self._tenants.items()
            if here and (one.here or one.served > self._floor)
        }
