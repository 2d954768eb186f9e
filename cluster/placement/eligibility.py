"""Which replicas can take a request at all: large enough, and of one layout. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.replica_record import ReplicaRecord
from engine.errors import PromptTooLong, Unavailable

_RETRY_AFTER_S = 2.0


def large_enough(pool: str, replicas: Sequence[ReplicaRecord], tokens: int) -> list[ReplicaRecord]:
    """Those that can hold so many tokens; Unavailable where there are none, PromptTooLong."""
    if not replicas:
        raise Unavailable(f"no healthy {pool} replica", retry_after_s=_RETRY_AFTER_S)
    fitting = [record for record in replicas if tokens <= capacity(record)]
    if not fitting:
        most = max(capacity(record) for record in replicas)
        raise PromptTooLong(
            f"{tokens} tokens do not fit the {pool} pool, which holds {most}", field="prompt"
        )
    return fitting


def pairs(prefill: ReplicaRecord, decode: ReplicaRecord) -> bool:
    """Whether KV of one means the same to the other: the same weights, in the same layout."""
    return prefill.kv_identity == decode.kv_identity


def with_partner(
    prefill: Sequence[ReplicaRecord], decode: Sequence[ReplicaRecord]
) -> list[ReplicaRecord]:
    """Those with somebody to hand KV to: while versions change there are replicas of both."""
    found = [one for one in prefill if any(pairs(one, other) for other in decode)]
    if not found:
        raise Unavailable(
            "no prefill and decode replica have the same weights and KV layout",
            retry_after_s=_RETRY_AFTER_S,
        )
    return found


def capacity(record: ReplicaRecord) -> int:
    """How many tokens' KV a replica can hold when it is empty."""
    return record.load.blocks_total * record.load.block_size
