"""Decides when a canary is rolled back: compares both arms over a sliding window. Pure."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass
from typing import Literal

from cluster.config.canary import MOST_REQUESTS, CanaryConfig, GuardConfig
from cluster.display_text import exact_time

Arm = Literal["stable", "canary"]

# The percentile of TTFT that is compared.
_PERCENT = 95


@dataclass(frozen=True, slots=True)
class ArmStats:
    """The requests of an arm in the window, the failed ones, and the 95th percentile of TTFT."""

    requests: int = 0
    failed: int = 0
    timed: int = 0
    ttft_p95_s: float | None = None

    @property
    def error_rate(self) -> float:
        """The share of failed requests."""
        return self.failed / self.requests if self.requests else 0.0


class CanaryJudge:
    """Compares the two arms of one endpoint. Another `salt` draws other requests for the canary."""

    def __init__(self, config: CanaryConfig, salt: str = "") -> None:
        self.config = config
        self._salt = salt
        self._window: dict[Arm, deque[tuple[float, float | None, bool]]] = {
            "stable": deque(maxlen=MOST_REQUESTS),
            "canary": deque(maxlen=MOST_REQUESTS),
        }

    def arm(self, tenant: str, request_id: str) -> Arm:
        """The arm of a request: the same in every router, and when the request is sent again.

        Requests are drawn, not tenants, so that the share is right with few tenants, too.
        """
        key = "\0".join((self._salt, tenant, request_id)).encode()
        drawn = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) / 2**64
        return "canary" if drawn < self.config.share else "stable"

    def note(self, arm: Arm, now: float, ttft_s: float | None, *, failed: bool) -> None:
        """Note a request that has ended; `ttft_s` is None if it had no first token."""
        self._window[arm].append((now, ttft_s, failed))

    def stats(self, arm: Arm, now: float) -> ArmStats:
        """The statistics of the arm in the window that ends now."""
        found = self._window[arm]
        while found and found[0][0] < now - self.config.guard.window_s:
            found.popleft()
        times = sorted(ttft_s for _, ttft_s, _ in found if ttft_s is not None)
        p95_s = times[-(-_PERCENT * len(times) // 100) - 1] if times else None
        return ArmStats(len(found), sum(failed for *_, failed in found), len(times), p95_s)

    def judge(self, now: float) -> str | None:
        """Why the canary must be rolled back; None while it need not, or too little is known."""
        return verdict(self.config.guard, self.stats("stable", now), self.stats("canary", now))


def verdict(guard: GuardConfig, stable: ArmStats, canary: ArmStats) -> str | None:
    """Why the canary is beyond its guard, compared with the stable arm; None where it is not."""
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
            f"TTFT p95 was {exact_time(canary.ttft_p95_s)} of {canary.timed} requests, "
            f"{exact_time(stable.ttft_p95_s)} elsewhere"
        )
    return None
