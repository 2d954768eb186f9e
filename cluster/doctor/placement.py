"""Whether Ray can place the replicas on this machine. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cluster.config.schema import TandemConfig
from cluster.doctor.findings import Finding, Severity

# Ray counts a GPU in so many parts.
_RAY_PARTS = 10_000


def look_at_placement(config: TandemConfig, gpus: int) -> Iterator[Finding]:
    """What `ray.shares` asks for against this machine; nothing where another Ray cluster serves."""
    if config.ray.address is not None or not config.ray.shares:
        return
    counts = config.replicas | {"router": config.router.replicas}
    wanted = sum(counts[name] * share.gpus for name, share in config.ray.shares.items())
    fits = (
        _gpus_of(
            [share.gpus for name, share in config.ray.shares.items() for _ in range(counts[name])]
        )
        <= gpus
    )
    resources = {key for share in config.ray.shares.values() for key in share.resources}
    if wanted > gpus:
        found = f"the replicas ask for {wanted:g} GPUs, and this machine has {gpus}"
        change = "fewer replicas, or a smaller ray.shares.NAME.gpus"
        yield Finding("ray.shares", Severity.ERROR, found, change)
    elif not fits:
        found = f"the replicas may not come onto {gpus} GPUs: each has its share of one GPU alone"
        change = "ray.shares.NAME.gpus that fill whole GPUs"
        yield Finding("ray.shares", Severity.WARNING, found, change)
    if resources:
        found = f"this machine's own Ray has no resource {', '.join(sorted(resources))}"
        change = "leave ray.shares.NAME.resources out, or set ray.address"
        yield Finding("ray.shares", Severity.ERROR, found, change)
    if wanted <= gpus and fits and not resources:
        yield Finding("ray.shares", Severity.OK, "every replica can be placed here")


def _gpus_of(shares: Iterable[float]) -> int:
    """The GPUs that these shares take, the largest first, each on the first one with room."""
    free: list[int] = []
    for share in sorted((round(one * _RAY_PARTS) for one in shares), reverse=True):
        for number, left in enumerate(free):
            if share <= left:
                free[number] -= share
                break
        else:
            free += [_RAY_PARTS - share] if share else []
    return len(free)
