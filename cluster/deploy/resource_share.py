"""The share of the machine that each replica of a deployment gets. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.config.deployment import DeploymentName
from cluster.config.schema import TandemConfig


@dataclass(frozen=True, slots=True)
class ResourceShare:
    """The cores and GPUs that each replica of a deployment may use, and requests of Ray."""

    threads: int
    gpus: float
    per_device: int
    resources: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, replicas: int, cores: int, gpus: int) -> ResourceShare:
        """An even share, in fractions that fit: two replicas on one GPU take half each."""
        per_gpu = -(-replicas // gpus) if gpus else 0
        return cls(
            threads=max(1, cores // replicas),
            gpus=1 / per_gpu if per_gpu else 0,
            per_device=per_gpu or replicas,
        )


def even_share(config: TandemConfig, cores: int, gpus: int) -> ResourceShare:
    """The share of each prefill or decode replica in so many cores and GPUs.

    Pools that scale may come to have all of their replicas there.
    """
    return ResourceShare.of(sum(config.most_replicas.values()), cores, gpus)


def shares_of(config: TandemConfig, even: ResourceShare) -> dict[DeploymentName, ResourceShare]:
    """The share of each deployment: the configured one, or else the even share."""
    fallback: dict[DeploymentName, ResourceShare] = {
        "router": ResourceShare(threads=1, gpus=0, per_device=1),
        "prefill": even,
        "decode": even,
    }
    given = config.ray.shares
    return {
        name: ResourceShare(own.threads, own.gpus, own.per_device, own.resources)
        if (own := given.get(name)) is not None
        else share
        for name, share in fallback.items()
    }
