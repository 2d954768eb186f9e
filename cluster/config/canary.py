"""The section `endpoints.*.canary`: the share of requests that it gets, and its guard."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.config import require

# The most requests of an arm that are compared.
MOST_REQUESTS = 4096


@dataclass(frozen=True, slots=True)
class GuardConfig:
    """What a canary may do worse than the stable arm."""

    ttft_p95_ratio: float = 1.5
    """The canary's 95th percentile of TTFT over that of the stable arm; above it the canary is
    rolled back.
    """
    error_rate: float = 0.02
    """The share of failed requests that the canary may have beyond that of the stable arm."""
    min_requests: int = 50
    """Requests of each arm, per router, before the arms are compared."""
    window_s: float = 600.0
    """The time over which the arms are compared."""

    def __post_init__(self) -> None:
        require(self.ttft_p95_ratio >= 1, "ttft_p95_ratio must be at least 1")
        require(0 <= self.error_rate < 1, "error_rate must be in [0, 1)")
        require(
            1 <= self.min_requests <= MOST_REQUESTS,
            f"min_requests must be between 1 and {MOST_REQUESTS}",
        )
        require(self.window_s > 0, "window_s must be positive")


@dataclass(frozen=True, slots=True)
class CanaryConfig:
    """A share of an endpoint's requests that is served with another endpoint's settings."""

    endpoint: str
    """The endpoint whose settings are tried."""
    share: float = 0.05
    """The share of the requests that get them."""
    guard: GuardConfig = field(default_factory=GuardConfig)
    """When the canary is rolled back."""

    def __post_init__(self) -> None:
        require(bool(self.endpoint), "endpoint must name an endpoint")
        require(0 < self.share < 1, "share must be in (0, 1)")
