"""Whether Ray can place the replicas on this machine. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.config.schema import TandemConfig
from cluster.doctor.findings import Finding, Severity


def look_at_placement(config: TandemConfig, gpus: int) -> Iterator[Finding]:
    """What `ray.shares` asks for against this machine; nothing where another Ray cluster serves."""
    if config.ray.address is not None or not config.ray.shares:
        return
    counts = config.replicas | {"router": config.router.replicas}
    wanted = sum(counts[name] * share.gpus for name, share in config.ray.shares.items())
    resources = {key for share in config.ray.shares.values() for key in share.resources}
    if wanted > gpus:
        found = f"the replicas ask for {wanted:g} GPUs, and this machine has {gpus}"
        change = "fewer replicas, or a smaller ray.shares.NAME.gpus"
        yield Finding("ray.shares", Severity.ERROR, found, change)
    if resources:
        found = f"this machine's own Ray has no resource {', '.join(sorted(resources))}"
        change = "leave ray.shares.NAME.resources out, or set ray.address"
        yield Finding("ray.shares", Severity.ERROR, found, change)
    if wanted <= gpus and not resources:
        yield Finding("ray.shares", Severity.OK, "every replica can be placed here")
