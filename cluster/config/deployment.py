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
    """What one replica of a deployment gets of its node, and asks of Ray to be placed there.

    `per_device` replicas share the memory of a device. `resources` are Ray's custom resources:
    a node that offers `{tandem_decode: 1}` takes one replica that asks for it.
    """

    threads: int = 1
    gpus: float = 0.0
    per_device: int = 1
    resources: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.threads >= 1, "threads must be at least 1")
        require(self.gpus >= 0, "gpus must not be negative")
        require(self.per_device >= 1, "per_device must be at least 1")
        require(all(amount > 0 for amount in self.resources.values()), "resources must be positive")


@dataclass(frozen=True, slots=True)
class RayConfig:
    """The Ray cluster that runs the replicas; `address` null starts a local one.

    `drain_s` is what a replica that ends leaves its requests. For another version a deployment has
    `surge_percent` more replicas for a while; 0 replaces them one after the other. `shares` says
    what the replicas of a deployment get, in place of an even share of the cluster as it is at the
    start.
    """

    address: str | None = None
    dashboard_host: str = "127.0.0.1"
    dashboard_port: int = 8265
    ready_timeout_s: float = 300.0
    drain_s: float = 10.0
    surge_percent: int = 100
    shares: dict[DeploymentName, ShareConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.drain_s >= 0, "drain_s must not be negative")
        require(0 <= self.surge_percent <= 100, "surge_percent must be between 0 and 100")
        require(bool(self.dashboard_host), "dashboard_host must not be empty")
        require(is_port(self.dashboard_port), "dashboard_port must be between 0 and 65535")
        require(self.ready_timeout_s > 0, "ready_timeout_s must be positive")


@dataclass(frozen=True, slots=True)
class DirectoryConfig:
    """The Redis that replicas share; `url` null starts a private one.

    Clusters of different namespaces in one Redis know nothing of each other.
    """

    url: str | None = None
    namespace: str = ""
    lease_s: float = 3.0
    heartbeat_s: float = 1.0

    def __post_init__(self) -> None:
        require(
            re.fullmatch(r"[A-Za-z0-9._-]{0,64}", self.namespace) is not None,
            "namespace must be at most 64 letters, digits, '.', '_' and '-'",
        )
        require(self.heartbeat_s > 0, "heartbeat_s must be positive")
        require(self.lease_s > self.heartbeat_s, "lease_s must be longer than heartbeat_s")
