"""Says which tenant goes first, and how much a tenant may have. Pure.

This is a virtual token counter (Sheng et al., "Fairness in Serving Large Language Models", 2024).
Each tenant is charged the tokens that it is served, divided by its weight. The tenant with the
smallest counter goes first. The counter of a tenant that comes back is lifted to the smallest
counter of the present tenants, because no tenant may save up service while it is away.

The counters are those of all routers: this router's charges count at once, those of its peers as
they are received. The caps are this router's limits (`cluster/tenants/cap_shares.py`), which add up
to the tenant's caps over all routers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from cluster.config.tenant_limits import TenantConfig, config_of
from cluster.tenants.cap_shares import CapUse, Key
from cluster.tenants.charges import Charges
from cluster.tenants.need import CONCURRENT, KV_TOKENS, WAITING_TOKENS, Need, cap_of
from engine.errors import InvalidRequest

# Promise: the prompt tokens that one output token is charged as (the paper's weights).
_OUTPUT_COST = 2.0
# Bound: publications for which a request that exceeded this router's share still counts.
_UNSERVED_FOR = 10

Cap = Literal["tenant_concurrent", "tenant_waiting", "tenant_kv"]


class CapLimits(Protocol):
    """The limits of this router within the caps."""

    def limit(self, key: Key, whole: int) -> int:
        """This router's limit of a cap that is `whole` over all routers."""
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
    waiting_requests: int = 0
    waiting_choices: int = 0
    waiting_tokens: int = 0
    waiting_kv: int = 0
    elsewhere: bool = False

    @property
    def present(self) -> bool:
        """Whether the tenant has requests in this router."""
        return self.running > 0 or self.waiting_requests > 0

    @property
    def here(self) -> bool:
        """Whether the tenant has requests in any router."""
        return self.present or self.elsewhere


class FairShare:
    """Counters and caps by tenant. A tenant without an entry in `tenants` has that of `default`."""

    def __init__(
        self, tenants: Mapping[str, TenantConfig], limits: CapLimits | None = None
    ) -> None:
        self._configs = dict(tenants)
        self._limits = limits or _Undivided()
        self._charges = Charges()
        self._tenants: dict[str, _Tenant] = {}
        self._unserved: dict[str, tuple[int, int]] = {}
        self._floor = 0.0

    def __len__(self) -> int:
        return len(self._tenants)

    def config(self, tenant: str) -> TenantConfig:
        """The configuration of the tenant."""
        return config_of(self._configs, tenant)

    def check(self, tenant: str, need: Need) -> None:
        """Raise InvalidRequest for a request that exceeds its tenant's caps by itself."""
        config = self.config(tenant)
        if need.requests > config.max_concurrent:
            most = config.max_concurrent
            raise InvalidRequest(f"this tenant may have {most} choices running", field="n")
        if config.max_kv_tokens is not None and need.kv_tokens > config.max_kv_tokens:
            raise InvalidRequest(
                f"prompt and answer may come to {need.kv_tokens} tokens; this tenant may use "
                f"{config.max_kv_tokens}",
                field="max_tokens",
            )

    def served(self, tenant: str) -> float:
        """Tokens that the tenant was served, over its weight. The smallest goes first."""
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
        """Let a request wait; returns the cap that it would exceed instead, if there is one."""
        known = self._enter(tenant)
        most = self._limit(tenant, WAITING_TOKENS, known.config.max_waiting_tokens)
        if known.waiting_tokens + need.tokens > most:
            self._unserved[tenant] = need.tokens, _UNSERVED_FOR
            self._tidy(tenant)
            return "tenant_waiting"
        known.waiting_requests += 1
        known.waiting_choices += need.requests
        known.waiting_tokens += need.tokens
        known.waiting_kv += need.kv_tokens
        return None

    def leave(self, tenant: str, need: Need) -> None:
        """End the wait of a request."""
        known = self._tenants[tenant]
        known.waiting_requests -= 1
        known.waiting_choices -= need.requests
        known.waiting_tokens -= need.tokens
        known.waiting_kv -= need.kv_tokens
        self._tidy(tenant)

    def start(self, tenant: str, tokens: int, kv_tokens: int = 0) -> None:
        """Begin to serve a choice: charge its prompt `tokens`, and count its KV."""
        known = self._enter(tenant)
        known.running += 1
        known.kv_tokens += kv_tokens
        self._charge(tenant, known, tokens)
        self._lift()

    def end(self, tenant: str, output_tokens: int, kv_tokens: int = 0) -> None:
        """End a choice, and charge its output tokens."""
        known = self._tenants[tenant]
        known.running -= 1
        known.kv_tokens -= kv_tokens
        self._charge(tenant, known, _OUTPUT_COST * output_tokens)
        self._tidy(tenant)

    def shown(self, names: Collection[str]) -> dict[str, dict[str, Any]]:
        """The use, caps and limits of these tenants and of all that are known here, by name."""
        found = {}
        for name in dict.fromkeys((*names, *self._tenants)):
            config = self.config(name)
            one = self._tenants.get(name) or _Tenant(config, self._floor)
            uses = {
                CONCURRENT: one.running,
                WAITING_TOKENS: one.waiting_tokens,
                KV_TOKENS: one.kv_tokens,
            }
            caps = {}
            for cap, used in uses.items():
                whole = cap_of(config, cap)
                here = None if whole is None else self._limit(name, cap, whole)
                caps[cap] = {"used": used, "here": here, "cap": whole}
            found[name] = {
                "weight": config.weight,
                "served": round(one.served, 1),
                "waiting_requests": one.waiting_requests,
                "caps": caps,
            }
        return found

    def publish(self) -> tuple[dict[Key, CapUse], dict[str, float], frozenset[str]]:
        """The state for the peers: uses of the caps, total charges, and the present tenants."""
        uses: dict[Key, CapUse] = {}
        for name, one in self._tenants.items():
            if not one.present:
                continue
            uses[name, CONCURRENT] = CapUse(one.running, one.running + one.waiting_choices)
            uses[name, WAITING_TOKENS] = CapUse(one.waiting_tokens, one.waiting_tokens)
            uses[name, KV_TOKENS] = CapUse(one.kv_tokens, one.kv_tokens + one.waiting_kv)
        for name, (tokens, left) in list(self._unserved.items()):
            use = uses.get((name, WAITING_TOKENS), CapUse())
            uses[name, WAITING_TOKENS] = CapUse(use.used, use.wants + tokens)
            self._unserved[name] = tokens, left - 1
            if left <= 1:
                del self._unserved[name]
        here = frozenset(name for name, one in self._tenants.items() if one.present)
        return uses, self._charges.publish(), here

    def receive(self, charged: Mapping[str, Mapping[str, float]], here: Collection[str]) -> None:
        """Take the total charges of the peers, by router, and the tenants present there."""
        for name, one in self._tenants.items():
            one.elsewhere = name in here
        for name in here:
            self._enter(name).elsewhere = True
        for name, amount in self._charges.receive(charged).items():
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
        """Lift the floor to the smallest counter of the present tenants."""
        here = [one.served for one in self._tenants.values() if one.here]
        self._floor = max(self._floor, min(here, default=self._floor))

    def _tidy(self, tenant: str) -> None:
        """Forget tenants that have gone, if this tenant has."""
        self._lift()
        if not self._tenants[tenant].here:
            self._forget()

    def _forget(self) -> None:
        """Forget tenants that have gone and were served no more than a new tenant."""
        self._lift()
        here = any(one.here for one in self._tenants.values())
        self._tenants = {
            name: one
            for name, one in self._tenants.items()
            if one.here or (here and one.served > self._floor)
        }
