"""The section `tenants`: what each tenant may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.config import require


@dataclass(frozen=True, slots=True)
class TenantConfig:
    """What one tenant may have in all routers together."""

    max_concurrent: int = 1024
    """Choices that run at the same time, over all routers."""
    max_waiting_tokens: int = 1_000_000
    """Prompt tokens that wait in routers for capacity."""
    max_kv_tokens: int | None = None
    """KV tokens that the admitted requests may come to need, prompt and longest answer of each
    choice; without it there is no bound.
    """
    weight: float = 1.0
    """The share of the tenant while others wait too."""

    def __post_init__(self) -> None:
        require(self.max_concurrent >= 1, "max_concurrent must be at least 1")
        require(self.max_waiting_tokens >= 1, "max_waiting_tokens must be at least 1")
        require(
            self.max_kv_tokens is None or self.max_kv_tokens >= 1,
            "max_kv_tokens must be at least 1",
        )
        require(self.weight > 0, "weight must be positive")


def config_of(tenants: Mapping[str, TenantConfig], tenant: str) -> TenantConfig:
    """The tenant's section, or that of `default`."""
    return tenants.get(tenant) or tenants.get("default") or TenantConfig()
