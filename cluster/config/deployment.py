"""The sections `ray` and `directory`: what runs the replicas, and what they share."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from cluster.sockets import is_port
from engine.config import require

DeploymentName = Literal["router", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class ShareConfig:
    """What one replica of a deployment gets of its node, and asks of Ray to be placed there."""

    threads: int = 1
    """CPU threads of a replica."""
    gpus: float = 0.0
    """GPUs of a replica, at most 1; a fraction shares one."""
    per_device: int = 1
    """Replicas that share the memory of a device."""
    resources: dict[str, float] = field(default_factory=dict)
    """Ray's custom resources that a replica asks for."""

    def __post_init__(self) -> None:
        require(self.threads >= 1, "threads must be at least 1")
        require(self.gpus >= 0, "gpus must not be negative")
        require(self.gpus <= 1, "gpus must be at most 1: a replica computes on one GPU")
        require(self.per_device >= 1, "per_device must be at least 1")
        require(all(amount > 0 for amount in self.resources.values()), "resources must be positive")


@dataclass(frozen=True, slots=True)
class RayConfig:
    """The Ray cluster that runs the replicas."""

    address: str | None = None
    """A Ray cluster that runs already; without it, a local one is started."""
    dashboard_host: str = "127.0.0.1"
    """The address on which Ray's dashboard listens."""
    dashboard_port: int = 8265
    """The port of Ray's dashboard; 0 takes a free port."""
    ready_timeout_s: float = 300.0
    """How long `tandem serve` and a rollout wait for the replicas."""
    drain_s: float = 30.0
    """How long a replica or router that ends waits for its requests. Longer ones are cut: with
    `router.request_timeout_s` none is. What sends SIGTERM must wait 20 s longer before it kills.
    """
    surge_percent: int = 100
    """Replicas beyond its number that a deployment may have while a version replaces another; 0
    stops the old ones first.
    """
    shares: dict[DeploymentName, ShareConfig] = field(default_factory=dict)
    """What a replica of `router`, `prefill` or `decode` gets; without it, an even share of the
    cluster.
    """

    def __post_init__(self) -> None:
        require(self.drain_s >= 0, "drain_s must not be negative")
        require(0 <= self.surge_percent <= 100, "surge_percent must be between 0 and 100")
        require(bool(self.dashboard_host), "dashboard_host must not be empty")
        require(is_port(self.dashboard_port), "dashboard_port must be between 0 and 65535")
        require(self.ready_timeout_s > 0, "ready_timeout_s must be positive")


@dataclass(frozen=True, slots=True)
class DirectoryConfig:
    """The Redis that replicas share."""

    url: str | None = None
    """A Redis, as `redis://HOST:PORT/DB`, or `rediss://` with TLS; without it a private one is
    started.
    """
    namespace: str = ""
    """Clusters of different namespaces in one Redis know nothing of each other."""
    lease_s: float = 3.0
    """A replica that is silent for so long is gone."""
    heartbeat_s: float = 1.0
    """How often a replica renews its lease."""

    def __post_init__(self) -> None:
        require(
            re.fullmatch(r"[A-Za-z0-9._-]{0,64}", self.namespace) is not None,
            "namespace must be at most 64 letters, digits, '.', '_' and '-'",
        )
        require(self.heartbeat_s > 0, "heartbeat_s must be positive")
        require(self.lease_s > self.heartbeat_s, "lease_s must be longer than heartbeat_s")
