"""Who goes first among tenants, and how much one may have. Pure.

A virtual token counter (Sheng et al., "Fairness in Serving Large Language Models", 2024): each
tenant is charged the tokens it is served, divided by its weight, and the one with the smallest
counter goes first. A tenant that comes back is lifted to the smallest of those that are here, as
nobody saves up service by staying away.

Counters are those of all routers: this one's own at once, the others' as they are heard of. Caps
are this router's limits (`cluster/tenants/cap_shares.py`), which add up to the tenant's over all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from cluster.config.tenant_limits import (
    CONCURRENT,
    KV_TOKENS,
    WAITING_TOKENS,
    Need,
    TenantConfig,
    config_of,
)
from cluster.tenants.cap_shares import CapUse, Key
from cluster.tenants.charges import Charges
from engine.errors import InvalidRequest

# An output token costs about that many prompt tokens (the paper's weights).
_OUTPUT_COST = 2.0
# For how many statements a request that was refused for a share's sake is still wanted.
_UNMET_FOR = 10

Cap = Literal["tenant_concurrent", "tenant_waiting", "tenant_kv"]


class CapLimits(Protocol):
    """How much of a cap may be used here."""

    def limit(self, key: Key, whole: int) -> int:
        """The limit, of a cap that is `whole` over all routers."""
        ...


class _Undivided:
    def limit(self, key: Key, whole: int) -> int:
        return whole


@dataclass(slots=True)
class _Tenant:
    config: TenantConfig
    served: float = 0.0
    running: int = 0
    kv_tokens: int = 0
    held: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    waiting_kv: int = 0
    elsewhere: bool = False

    @property
    def present(self) -> bool:
        """Whether it has requests in this router."""
        return self.running > 0 or self.held > 0

    @property
    def here(self) -> bool:
        """Whether it has requests in any router."""
        return self.present or self.elsewhere


class FairShare:
    """Counters and caps by tenant; one without an entry in `tenants` has that of `default`."""

    def __init__(
        self, tenants: Mapping[str, TenantConfig], limits: CapLimits | None = None
    ) -> None:
        self._configs = dict(tenants)
        self._limits = limits or _Undivided()
        self._charges = Charges()
        self._tenants: dict[str, _Tenant] = {}
        self._unmet: dict[str, tuple[int, int]] = {}
        self._floor = 0.0

    def __len__(self) -> int:
        return len(self._tenants)

    def config(self, tenant: str) -> TenantConfig:
        """What the tenant may have."""
        return config_of(self._configs, tenant)

    def check(self, tenant: str, need: Need) -> None:
        """Raise InvalidRequest for a request that exceeds its tenant's caps even alone."""
        config = self.config(tenant)
        if need.requests > config.max_concurrent:
            most = config.max_concurrent
            raise InvalidRequest(f"this tenant may have {most} choices running", field="n")
        if config.max_kv_tokens is not None and need.kv_tokens > config.max_kv_tokens:
            raise InvalidRequest(
                f"prompt and answer may come to {need.kv_tokens} tokens; this tenant may hold "
                f"{config.max_kv_tokens}",
                field="max_tokens",
            )

    def served(self, tenant: str) -> float:
        """What the tenant was served, by weight; the smallest goes first."""
        known = self._tenants.get(tenant)
        return self._floor if known is None else known.served

    def cap(self, tenant: str, need: Need) -> Cap | None:
        """The cap that one more request of this tenant would exceed here."""
        known, config = self._tenants.get(tenant), self.config(tenant)
        running, kv_tokens = (0, 0) if known is None else (known.running, known.kv_tokens)
        if running + need.requests > self._limit(tenant, CONCURRENT, config.max_concurrent):
            return "tenant_concurrent"
        most = config.max_kv_tokens
        if most is not None and kv_tokens + need.kv_tokens > self._limit(tenant, KV_TOKENS, most):
            return "tenant_kv"
        return None

    def wait(self, tenant: str, need: Need) -> Cap | None:
        """A request begins to wait, unless it exceeds the cap."""
        known = self._enter(tenant)
        most = self._limit(tenant, WAITING_TOKENS, known.config.max_waiting_tokens)
        if known.waiting_tokens + need.tokens > most:
            self._unmet[tenant] = need.tokens, _UNMET_FOR
            self._tidy(tenant)
            return "tenant_waiting"
        known.held += 1
        known.waiting += need.requests
        known.waiting_tokens += need.tokens
        known.waiting_kv += need.kv_tokens
        return None

    def leave(self, tenant: str, need: Need) -> None:
        """A request no longer waits."""
        known = self._tenants[tenant]
        known.held -= 1
        known.waiting -= need.requests
        known.waiting_tokens -= need.tokens
        known.waiting_kv -= need.kv_tokens
        self._tidy(tenant)

    def start(self, tenant: str, tokens: int, kv_tokens: int = 0) -> None:
        """A choice is served: it is charged so many tokens of its prompt, and holds KV."""
        known = self._enter(tenant)
        known.running += 1
        known.kv_tokens += kv_tokens
        self._charge(tenant, known, tokens)
        self._lift()

    def end(self, tenant: str, output_tokens: int, kv_tokens: int = 0) -> None:
        """A choice has ended: it is charged its answer."""
        known = self._tenants[tenant]
        known.running -= 1
        known.kv_tokens -= kv_tokens
        self._charge(tenant, known, _OUTPUT_COST * output_tokens)
        self._tidy(tenant)

    def say(self) -> tuple[dict[Key, CapUse], dict[str, float], frozenset[str]]:
        """For the other routers: what is used, what was charged in all, and who is here."""
        uses: dict[Key, CapUse] = {}
        for name, one in self._tenants.items():
            if not one.present:
                continue
            uses[name, CONCURRENT] = CapUse(one.running, one.running + one.waiting)
            uses[name, WAITING_TOKENS] = CapUse(one.waiting_tokens, one.waiting_tokens)
            uses[name, KV_TOKENS] = CapUse(one.kv_tokens, one.kv_tokens + one.waiting_kv)
        for name, (tokens, left) in list(self._unmet.items()):
            use = uses.get((name, WAITING_TOKENS), CapUse())
            uses[name, WAITING_TOKENS] = CapUse(use.used, use.wants + tokens)
            self._unmet[name] = tokens, left - 1
            if left <= 1:
                del self._unmet[name]
        here = frozenset(name for name, one in self._tenants.items() if one.present)
        return uses, self._charges.say(), here

    def hear(self, charged: Mapping[str, Mapping[str, float]], here: Collection[str]) -> None:
        """What the other routers have charged in all, by router, and which tenants are there."""
        for name, one in self._tenants.items():
            one.elsewhere = name in here
        for name in here:
            self._enter(name).elsewhere = True
        for name, amount in self._charges.hear(charged).items():
            self._enter(name).served += amount
        self._forget()

    def _limit(self, tenant: str, name: str, whole: int) -> int:
        return self._limits.limit((tenant, name), whole)

    def _charge(self, tenant: str, known: _Tenant, tokens: float) -> None:
        amount = tokens / known.config.weight
        known.served += amount
        self._charges.add(tenant, amount)

    def _enter(self, tenant: str) -> _Tenant:
        known = self._tenants.get(tenant)
        if known is None:
            known = self._tenants[tenant] = _Tenant(self.config(tenant), self._floor)
        if not known.here:
            known.served = max(known.served, self._floor)
        return known

    def _lift(self) -> None:
        """The floor rises with the smallest counter of those that are here."""
        here = [one.served for one in self._tenants.values() if one.here]
        self._floor = max(self._floor, min(here, default=self._floor))

    def _tidy(self, tenant: str) -> None:
        """Forget who has gone, where this tenant has."""
        self._lift()
        if not self._tenants[tenant].here:
            self._forget()

    def _forget(self) -> None:
        """Forget those that have gone and have had no more than one that is new."""
        self._lift()
        here = any(one.here for one in self._tenants.values())
        self._tenants = {
            name: one
            for name, one in self._tenants.items()
            if one.here or (here and one.served > self._floor)
        }
