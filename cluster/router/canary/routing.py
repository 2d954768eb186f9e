"""The canaries of a router: their requests, the outcomes, and their rollback.

A canary stays rolled back until the configuration of either endpoint changes, or until no router is
left that knows of it. Routers tell each other (`cluster/router/peer_exchange.py`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from cluster.config.endpoints import EndpointConfig
from cluster.router.canary.judge import Arm, ArmStats, CanaryJudge
from cluster.telemetry import router_metrics as metrics

log = logging.getLogger(__name__)

# The judge sorts the window, so it judges not at every request.
_JUDGE_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class CanaryRoute:
    """The route of a request: it is served as `served_as`; `arm` None means no canary.

    `config` is the version of the configuration that says so (`cluster/config/version.py`).
    """

    endpoint: str
    served_as: str
    arm: Arm | None = None
    config: str = ""


@dataclass(frozen=True, slots=True)
class CanaryState:
    """One canary, as this router knows it; `reason` is why it was rolled back."""

    endpoint: str
    served_as: str
    share: float
    reason: str | None
    stable: ArmStats
    canary: ArmStats


class CanaryRouting:
    """The canaries of all endpoints."""

    def __init__(
        self,
        endpoints: Mapping[str, EndpointConfig],
        config_version: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._config_version = config_version
        self._canaries: dict[str, CanaryJudge] = {}
        self._versions: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._judged_s: dict[str, float] = {}
        for name, endpoint in endpoints.items():
            if endpoint.canary is not None:
                version = _version(name, endpoint, endpoints[endpoint.canary.endpoint])
                self._canaries[name] = CanaryJudge(endpoint.canary, version)
                self._versions[name] = version

    def route(self, endpoint: str, tenant: str, request_id: str) -> CanaryRoute:
        """The route of a request."""
        canary, version = self._canaries.get(endpoint), self._config_version
        if canary is None:
            return CanaryRoute(endpoint, endpoint, None, version)
        if endpoint in self._reasons or canary.arm(tenant, request_id) == "stable":
            return CanaryRoute(endpoint, endpoint, "stable", version)
        return CanaryRoute(endpoint, canary.config.endpoint, "canary", version)

    def ended(
        self, route: CanaryRoute, outcome: str, ttft_s: float | None, *, failed: bool
    ) -> None:
        """Note a request that has ended, and roll its canary back if the judge says so."""
        if route.arm is None:
            return
        name, now = route.endpoint, self._clock()
        metrics.ROLLED_BACK.set(name in self._reasons, endpoint=name)
        metrics.ARM_REQUESTS.inc(endpoint=name, arm=route.arm, outcome=outcome)
        if ttft_s is not None:
            metrics.ARM_TTFT.observe(ttft_s, endpoint=name, arm=route.arm)
        canary = self._canaries[name]
        canary.note(route.arm, now, ttft_s, failed=failed)
        last_s = self._judged_s.get(name)
        if name in self._reasons or (last_s is not None and now - last_s < _JUDGE_EVERY_S):
            return
        self._judged_s[name] = now
        if (reason := canary.judge(now)) is not None:
            self._roll_back(name, reason)

    def publish(self) -> dict[str, str]:
        """The reasons of rollbacks for the other routers, by endpoint and version."""
        return {self._versions[name]: reason for name, reason in self._reasons.items()}

    def receive(self, rolled_back: Mapping[str, str]) -> None:
        """Roll back what another router rolled back."""
        for name, version in self._versions.items():
            if version in rolled_back and name not in self._reasons:
                self._roll_back(name, rolled_back[version])

    def states(self) -> list[CanaryState]:
        """All canaries, by endpoint."""
        now = self._clock()
        return [
            CanaryState(
                name,
                canary.config.endpoint,
                canary.config.share,
                self._reasons.get(name),
                canary.stats("stable", now),
                canary.stats("canary", now),
            )
            for name, canary in sorted(self._canaries.items())
        ]

    def _roll_back(self, name: str, reason: str) -> None:
        self._reasons[name] = reason
        metrics.ROLLED_BACK.set(1, endpoint=name)
        served_as = self._canaries[name].config.endpoint
        fields = {"endpoint": name, "canary": served_as, "reason": reason}
        log.warning("canary rolled back", extra=fields)


def _version(name: str, *endpoints: EndpointConfig) -> str:
    """The endpoint, and a digest of all settings of both arms."""
    settings = json.dumps([asdict(endpoint) for endpoint in endpoints], sort_keys=True)
    return f"{name}@{hashlib.sha256(settings.encode()).hexdigest()[:16]}"
