"""The faults: the cluster that shows each of them, its calm traffic, and what the fault adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

FaultName = Literal["slow-prefill", "tenant-burst", "kv-full"]
CHAT, COMPLETIONS = "chat", "completions"
TENANTS = ("acme", "globex", "initech")


@dataclass(frozen=True, slots=True)
class Flow:
    """Requests of one tenant at one endpoint: Poisson arrivals at `rate` per second.

    Prompts have about `prompt` tokens, answers `answer` tokens. `at_once` bounds what runs.
    """

    tenant: str
    endpoint: str
    rate: float
    prompt: int = 420
    answer: int = 24
    at_once: int = 48


def _each(rate: float) -> tuple[Flow, ...]:
    """The same flow of every tenant at both endpoints."""
    return tuple(
        Flow(tenant, endpoint, rate) for tenant in TENANTS for endpoint in (CHAT, COMPLETIONS)
    )


@dataclass(frozen=True, slots=True)
class ClusterFault:
    """A fault, and the cluster and the calm traffic that show it.

    `stopped` is the share of time in which one prefill replica stands still.
    """

    cause: str
    extra: tuple[Flow, ...] = ()
    stopped: float = 0.0
    kv_blocks: int = 2000
    calm: tuple[Flow, ...] = _each(0.5)


FAULTS: Mapping[FaultName, ClusterFault] = {
    # The router soon avoids the slow replica. With more requests more of them meet it before.
    "slow-prefill": ClusterFault(
        "one prefill replica gets a tenth of its CPU time", stopped=0.9, calm=_each(1.0)
    ),
    "tenant-burst": ClusterFault(
        "the tenant initech sends many long prompts",
        extra=(Flow("initech", COMPLETIONS, 16.0, prompt=1500, answer=8, at_once=32),),
    ),
    "kv-full": ClusterFault(
        "long answers fill the KV blocks of the decode replicas",
        extra=(Flow("initech", CHAT, 3.0, answer=500),),
        kv_blocks=300,
    ),
}
