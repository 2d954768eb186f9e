"""How pressed a pool is, from what its replicas and the routers report. Pure.

1 is a pool's limit. Of prefill it is the predicted wait of a new prompt, of decode the blocks that
are used or promised, the batch, and the token gap; neither CPU nor GPU use says when a request
would be late. A pool for whose lack routers refuse requests is at its limit, whatever else it says:
what was refused waits nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.membership import Pool, ReplicaRecord


@dataclass(frozen=True, slots=True)
class Limits:
    """What a replica may be given: `queue_s` of prompts, `in_use` of blocks and batch, `gap_s`.

    Requests are promised `overcommit` times its blocks.
    """

    queue_s: float = 1.0
    in_use: float = 0.9
    gap_s: float = 0.06
    overcommit: float = 1.0


def filled(pool: Pool, record: ReplicaRecord, limits: Limits) -> float:
    """The part of its queue, or of its blocks and its batch, that a replica has taken."""
    load = record.load
    if pool == "prefill":
        speed = load.prompt_tokens_per_s
        return load.prompt_tokens_due / speed / limits.queue_s if speed else 0.0
    promised = load.blocks_promised / limits.overcommit
    blocks = max(load.blocks_used, promised) / max(1, load.blocks_total)
    batch = load.streams / max(1, load.batch_limit)
    return max(blocks, batch) / limits.in_use


def slow(pool: Pool, record: ReplicaRecord, limits: Limits) -> float:
    """Its token gap in parts of the limit; a single stream is no faster beside a new replica."""
    alone = pool == "prefill" or record.load.streams <= 1
    return 0.0 if alone else (record.load.step_s or 0.0) / limits.gap_s


def used(pool: Pool, record: ReplicaRecord, limits: Limits) -> float:
    """The part of its limit that a replica has reached, in that pool's work."""
    return max(filled(pool, record, limits), slow(pool, record, limits))


def unmet(pool: Pool, members: Iterable[ReplicaRecord]) -> int:
    """Requests that routers refused just now, or hold for long, for lack of that pool."""
    routers = (record.load for record in members if record.role == "router")
    return sum(load.unmet_prefill if pool == "prefill" else load.unmet_decode for load in routers)


def pressure(pool: Pool, members: Sequence[ReplicaRecord], limits: Limits) -> float:
    """How pressed the pool is, by its least loaded replica; 1: at its limit."""
    serving = [record for record in members if record.role != "router" and record.serves(pool)]
    least = min((used(pool, record, limits) for record in serving), default=0.0)
    return max(least, 1.0) if unmet(pool, members) else least


def shared(pool: Pool, members: Sequence[ReplicaRecord], limits: Limits, left: int) -> float:
    """How pressed each would be if `left` replicas shared what the pool does now."""
    serving = [record for record in members if record.role != "router" and record.serves(pool)]
    taken = sum(filled(pool, record, limits) for record in serving) / left
    return max([taken, *(slow(pool, record, limits) for record in serving)])
