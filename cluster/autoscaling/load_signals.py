"""How pressed a pool is, from what its replicas and the routers report. Pure.

1 is a pool's limit. Of prefill it is the predicted wait of a new prompt, in the routers and behind
that on the replica, of decode the blocks that are used or promised, the batch, and the token gap;
neither CPU nor GPU use says when a request would be late. A pool for whose lack routers refuse
requests is at its limit, whatever else it says: what was refused waits nowhere.

Work of the batch lane uses what the others leave and is no pressure, unless it is to count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.replica_record import Pool, ReplicaRecord


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """What a replica may be given: `queue_s` of prompts, `in_use` of blocks and batch, `itl_s`.

    Requests are promised `overcommit` times its blocks. `batch`: the batch lane counts, too.
    """

    queue_s: float = 1.0
    in_use: float = 0.9
    itl_s: float = 0.06
    overcommit: float = 1.0
    batch: bool = False


def filled(pool: Pool, record: ReplicaRecord, limits: LoadLimits) -> float:
    """The part of its queue, or of its blocks and its batch, that a replica has taken."""
    load = record.load
    if pool == "prefill":
        speed = load.prompt_tokens_per_s
        due = _counted(load.prompt_tokens_due, load.batch_tokens_due, limits)
        return due / speed / limits.queue_s if speed else 0.0
    promised = _counted(load.blocks_promised, load.batch_blocks, limits) / limits.overcommit
    taken = max(_counted(load.blocks_used, load.batch_blocks, limits), promised)
    streams = _counted(load.streams, load.batch_streams, limits)
    batch = streams / max(1, load.batch_limit)
    return max(taken / max(1, load.blocks_total), batch) / limits.in_use


def slow(pool: Pool, record: ReplicaRecord, limits: LoadLimits) -> float:
    """Its token gap in parts of the limit; a single stream is no faster beside a new replica."""
    load = record.load
    if pool == "prefill" or load.streams <= 1:
        return 0.0
    if not _counted(load.streams, load.batch_streams, limits):
        return 0.0
    return (load.step_s or 0.0) / limits.itl_s


def used(pool: Pool, record: ReplicaRecord, limits: LoadLimits) -> float:
    """The part of its limit that a replica has reached, in that pool's work."""
    return max(filled(pool, record, limits), slow(pool, record, limits))


def unmet(pool: Pool, members: Iterable[ReplicaRecord], limits: LoadLimits) -> int:
    """Requests that routers refused just now, or hold for long, for lack of that pool."""
    routers = [record.load for record in members if record.role == "router"]
    if pool == "prefill":
        return sum(load.unmet_prefill for load in routers)
    batch = sum(load.unmet_batch for load in routers) if limits.batch else 0
    return sum(load.unmet_decode for load in routers) + batch


def pressure(pool: Pool, members: Sequence[ReplicaRecord], limits: LoadLimits) -> float:
    """How pressed the pool is, by its least loaded replica; 1: at its limit."""
    least = min((used(pool, one, limits) for one in _serving(pool, members)), default=0.0)
    least += _line(pool, members, limits)
    return max(least, 1.0) if unmet(pool, members, limits) else least


def shared(pool: Pool, members: Sequence[ReplicaRecord], limits: LoadLimits, left: int) -> float:
    """How pressed each would be if `left` replicas shared what the pool does now."""
    serving = _serving(pool, members)
    taken = sum(filled(pool, record, limits) for record in serving)
    taken += len(serving) * _line(pool, members, limits)
    return max([taken / left, *(slow(pool, record, limits) for record in serving)])


def _serving(pool: Pool, members: Iterable[ReplicaRecord]) -> list[ReplicaRecord]:
    return [record for record in members if record.role != "router" and record.serves(pool)]


def _line(pool: Pool, members: Iterable[ReplicaRecord], limits: LoadLimits) -> float:
    """The part of the limit that prompts have waited for before they come to a replica."""
    if pool == "decode":
        return 0.0
    return sum(record.load.held_s for record in members if record.role == "router") / limits.queue_s


def _counted(amount: int, batch: int, limits: LoadLimits) -> int:
    """An amount, of which the batch lane has so much, as it counts."""
    return amount if limits.batch else max(0, amount - batch)
