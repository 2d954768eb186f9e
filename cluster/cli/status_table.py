"""`tandem status`: a router's answer as a table or as JSON."""

from __future__ import annotations

import sys
from shutil import get_terminal_size
from typing import Any

from cluster.cli.columns import aligned
from cluster.display_text import exact_time, plain
from protos import router_pb2

_BLOCKS = ("total", "used", "cached", "leased", "quarantined", "orphaned")
_COLUMNS = ("role", "id", "address", "health", "start_s", "waiting", "running", *_BLOCKS)
_STARTING = ("id", "role", "stage", "done", "total", "unit")
_TEXT_COLUMNS = 4  # the first ones are aligned to the left


def healthy(status: router_pb2.StatusResponse) -> bool:
    """Whether no replica is missing, and all replicas are healthy."""
    return not status.missing and all(replica.healthy for replica in status.replicas)


def health_of(replica: router_pb2.ReplicaStatus) -> str:
    """The health of a replica in words; a slow one is compared with the others of its pool."""
    if replica.leaving or not replica.healthy:
        return "leaving" if replica.leaving else "lost"
    return plain(replica.slow) or "ok"


def speed_of(replica: router_pb2.ReplicaStatus) -> tuple[float | None, float | None]:
    """Its seconds for 1,000 prompt tokens and for a decode step; None where not known."""
    return (
        replica.prefill_s if replica.HasField("prefill_s") else None,
        replica.step_s if replica.HasField("step_s") else None,
    )


def as_data(status: router_pb2.StatusResponse) -> dict[str, Any]:
    """The answer as plain data."""
    return {
        "healthy": healthy(status),
        "missing": list(status.missing),
        "config": status.config,
        "rollout": _rollout(status.rollout) if status.HasField("rollout") else None,
        "replicas": [
            {
                "id": replica.id,
                "role": replica.role,
                "address": replica.address,
                "healthy": replica.healthy,
                "leaving": replica.leaving,
                "config": replica.config,
                "waiting": replica.waiting,
                "running": replica.running,
                **dict(zip(("prefill_s", "step_s"), speed_of(replica), strict=True)),
                "slow": replica.slow or None,
                "start_s": {name: round(replica.start_s[name], 3) for name in replica.start_s},
                "blocks": {name: getattr(replica.blocks, name) for name in _BLOCKS},
            }
            for replica in status.replicas
        ],
        "starting": [
            {name: getattr(one, name) for name in _STARTING}
            | {"left_s": one.left_s if one.HasField("left_s") else None}
            for one in status.starting
        ],
        "canaries": [
            {
                "endpoint": canary.endpoint,
                "served_as": canary.served_as,
                "share": canary.share,
                "rolled_back": canary.rolled_back if canary.HasField("rolled_back") else None,
                "arms": {
                    arm.name: {
                        "requests": arm.requests,
                        "failed": arm.failed,
                        "ttft_p95_s": arm.ttft_p95_s if arm.HasField("ttft_p95_s") else None,
                    }
                    for arm in canary.arms
                },
            }
            for canary in status.canaries
        ],
    }


def _rollout(rollout: router_pb2.RolloutStatus) -> dict[str, str]:
    return {name: getattr(rollout, name) for name in ("id", "version", "state", "reason")}


def as_table_here(status: router_pb2.StatusResponse) -> str:
    """The table, as wide as the terminal where stdout is one."""
    return as_table(status, get_terminal_size().columns if sys.stdout.isatty() else None)


def as_table(status: router_pb2.StatusResponse, width: int | None = None) -> str:
    """The answer as aligned columns; block counts follow the requests.

    In a terminal that is narrower than that, they stand below, where replicas have any.
    """
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for replica in sorted(status.replicas, key=lambda entry: (entry.role, entry.id)):
        # A router has no KV pool.
        counts = [getattr(replica.blocks, name) for name in _BLOCKS]
        blocks = [str(count) for count in counts] if replica.blocks.total else ["-"] * len(counts)
        where = (replica.role, replica.id, replica.address, health_of(replica))
        start = f"{sum(replica.start_s.values()):.1f}" if replica.start_s else "-"
        rows.append((*where, start, str(replica.waiting), str(replica.running), *blocks))
    lines = aligned(rows, _TEXT_COLUMNS)
    if width is not None and max(map(len, lines)) > width:
        pools = [(row[1], *row[-len(_BLOCKS) :]) for row in rows if row[-1] != "-"]
        lines = aligned([row[: -len(_BLOCKS)] for row in rows], _TEXT_COLUMNS)
        lines += ["", *aligned(pools, 1)]
    lines += [f"replicas are missing: {name}" for name in status.missing]
    lines += [f"starting: {plain(one.id)}: {plain(one.progress)}" for one in status.starting]
    return "\n".join([*lines, *map(_canary_line, status.canaries)])


def _canary_line(canary: router_pb2.CanaryStatus) -> str:
    """The line of one canary: its state, and the recent requests of both arms."""
    state = f"{canary.share:.3g} of its requests"
    if canary.HasField("rolled_back"):
        state = f"rolled back: {canary.rolled_back}"
    arms = [
        f"{arm.name} {arm.requests} requests, {arm.failed} failed"
        + (f", TTFT p95 {exact_time(arm.ttft_p95_s)}" if arm.HasField("ttft_p95_s") else "")
        for arm in canary.arms
    ]
    return f"canary {canary.endpoint} -> {canary.served_as}: {'; '.join([state, *arms])}"
