"""A request's use of its tenant's caps, and the size of the caps. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cluster.config.tenant_limits import TenantConfig, config_of

CONCURRENT, WAITING_TOKENS, KV_TOKENS = "concurrent", "waiting_tokens", "kv_tokens"


@dataclass(frozen=True, slots=True)
class Need:
    """A request's use of its tenant's caps: choices, prompt tokens, KV tokens of all choices."""

    requests: int = 1
    tokens: int = 0
    kv_tokens: int = 0


def cap_of(config: TenantConfig, name: str) -> int | None:
    """A cap over all routers together; None where there is none."""
    caps = {
        CONCURRENT: config.max_concurrent,
        WAITING_TOKENS: config.max_waiting_tokens,
        KV_TOKENS: config.max_kv_tokens,
    }
    return caps.get(name)


def caps_of(tenants: Mapping[str, TenantConfig]) -> Callable[[tuple[str, str]], int | None]:
    """A function that gives a cap over all routers, by tenant and name of the cap."""

    def whole(key: tuple[str, str]) -> int | None:
        tenant, name = key
        return cap_of(config_of(tenants, tenant), name)

    return whole
