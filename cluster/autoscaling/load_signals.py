"""Measures the pressure on a pool, from the load signals of its replicas and the routers. Pure.

A pressure of 1 is a pool's limit. The signals are:

- of prefill the predicted wait of a new prompt, in the routers and then on the replica;
- of decode the blocks that are used or promised, the batch slots, and the inter-token latency;
- of both the unserved demand: a pool for which routers refuse requests is at its limit, because
  what was refused waits nowhere.

CPU and GPU use do not say when a request would be late, so they are no signals. The batch lane uses
what the other lanes leave, and counts only if `LoadLimits.batch` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.replica_record import Pool, ReplicaRecord


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """The limits of one replica's load.

    `queue_s` are seconds of queued prompts, `in_use` is the part of its blocks and batch slots, and
    `itl_s` the time between two tokens. Requests may be promised `overcommit` times its blocks.
    `batch`: the batch lane counts as well.
    """

    queue_s: float = 1.0
    in_use: float = 0.9
    itl_s: float = 0.06
    overcommit: float = 1.0
    batch: bool = False


def filled(pool: Pool, record: ReplicaRecord, limits: LoadLimits) -> float:
    """The part of its queue limit, or of its blocks and batch slots, that a replica uses."""
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
    """A replica's inter-token latency over the limit, if it has more than one stream.

    A new replica makes a single stream no faster.
    """
    load = record.load
    if pool == "prefill" or load.streams <= 1:
        return 0.0
    if not _counted(load.streams, load.batch_streams, limits):
        return 0.0
    return (load.step_s or 0.0) / limits.itl_s


def used(pool: Pool, record: ReplicaRecord, limits: LoadLimits) -> float:
    """The part of its limits that a replica has reached, in that pool's work."""
    return max(filled(pool, record, limits), slow(pool, record, limits))


def unserved(pool: Pool, members: Iterable[ReplicaRecord], limits: LoadLimits) -> int:
    """Requests that routers refused just now, or that wait long, for capacity of that pool."""
    routers = [record.load for record in members if record.role == "router"]
    if pool == "prefill":
        return sum(load.unserved_prefill for load in routers)
    batch = sum(load.unserved_batch for load in routers) if limits.batch else 0
    return sum(load.unserved_decode for load in routers) + batch


def pressure(pool: Pool, members: Sequence[ReplicaRecord], limits: LoadLimits) -> float:
    """The pressure on the pool, by its least loaded replica; 1 is its limit."""
    least = min((used(pool, one, limits) for one in _serving(pool, members)), default=0.0)
    least += _queued(pool, members, limits)
    return max(least, 1.0) if unserved(pool, members, limits) else least


def shared(pool: Pool, members: Sequence[ReplicaRecord], limits: LoadLimits, left: int) -> float:
    """The pressure on the pool if `left` replicas shared the work that it has now."""
    serving = _serving(pool, members)
    taken = sum(filled(pool, record, limits) for record in serving)
    taken += len(serving) * _queued(pool, members, limits)
    return max([taken / left, *(slow(pool, record, limits) for record in serving)])


def _serving(pool: Pool, members: Iterable[ReplicaRecord]) -> list[ReplicaRecord]:
    return [record for record in members if record.role != "router" and record.serves(pool)]


def _queued(pool: Pool, members: Iterable[ReplicaRecord], limits: LoadLimits) -> float:
    """The part of the queue limit that prompts wait in routers, before they reach a replica."""
    if pool == "decode":
        return 0.0
    routers = (record.load for record in members if record.role == "router")
    return sum(load.queued_prefill_s for load in routers) / limits.queue_s


def _counted(amount: int, batch: int, limits: LoadLimits) -> int:
    """The part of an amount that counts; the batch lane has `batch` of it."""
    return amount if limits.batch else max(0, amount - batch)
