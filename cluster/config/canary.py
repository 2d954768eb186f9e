"""When a canary is rolled back: both arms of an endpoint compared over a sliding window. Pure."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from engine.config import require

Arm = Literal["stable", "canary"]

# The most requests of an arm that are remembered, and the percentile that is compared.
_MOST = 4096
_PERCENT = 95


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
        require(1 <= self.min_requests <= _MOST, f"min_requests must be between 1 and {_MOST}")
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


@dataclass(frozen=True, slots=True)
class ArmStats:
    """What an arm did in the window: requests, how many failed, and TTFT's 95th percentile."""

    requests: int = 0
    failed: int = 0
    timed: int = 0
    ttft_p95_s: float | None = None

    @property
    def error_rate(self) -> float:
        """The share that failed."""
        return self.failed / self.requests if self.requests else 0.0


class CanaryJudge:
    """The two arms of one endpoint. `salt` draws anew whose requests the canary gets."""

    def __init__(self, config: CanaryConfig, salt: str = "") -> None:
        self.config = config
        self._salt = salt
        self._seen: dict[Arm, deque[tuple[float, float | None, bool]]] = {
            "stable": deque(maxlen=_MOST),
            "canary": deque(maxlen=_MOST),
        }

    def arm(self, tenant: str, request_id: str) -> Arm:
        """The arm of a request: the same in every router, and again where it is sent again.

        Drawn by request and not by tenant, so that the share holds however few tenants there are.
        """
        key = "\0".join((self._salt, tenant, request_id)).encode()
        drawn = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) / 2**64
        return "canary" if drawn < self.config.share else "stable"

    def note(self, arm: Arm, now: float, ttft_s: float | None, *, failed: bool) -> None:
        """A request has ended; `ttft_s` None where it had no first token."""
        self._seen[arm].append((now, ttft_s, failed))

    def seen(self, arm: Arm, now: float) -> ArmStats:
        """What the arm did in the window that ends now."""
        found = self._seen[arm]
        while found and found[0][0] < now - self.config.guard.window_s:
            found.popleft()
        times = sorted(ttft_s for _, ttft_s, _ in found if ttft_s is not None)
        p95_s = times[-(-_PERCENT * len(times) // 100) - 1] if times else None
        return ArmStats(len(found), sum(failed for *_, failed in found), len(times), p95_s)

    def judge(self, now: float) -> str | None:
        """Why the canary must be rolled back; None: it need not, or nobody can tell yet."""
        return verdict(self.config.guard, self.seen("stable", now), self.seen("canary", now))


def verdict(guard: GuardConfig, stable: ArmStats, canary: ArmStats) -> str | None:
    """Why a canary that did this beside that is beyond its guard; None where it is not."""
    least = guard.min_requests
    if min(stable.requests, canary.requests) < least:
        return None
    if canary.error_rate > stable.error_rate + guard.error_rate:
        return (
            f"{canary.error_rate:.1%} of {canary.requests} requests failed, "
            f"{stable.error_rate:.1%} elsewhere"
        )
    if stable.ttft_p95_s is None or canary.ttft_p95_s is None:
        return None
    if min(stable.timed, canary.timed) < least:
        return None
    if canary.ttft_p95_s > guard.ttft_p95_ratio * stable.ttft_p95_s:
        return (
            f"TTFT p95 was {canary.ttft_p95_s:.3f} s of {canary.timed} requests, "
            f"{stable.ttft_p95_s:.3f} s elsewhere"
        )
    return None
