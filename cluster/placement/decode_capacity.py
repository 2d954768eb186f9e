"""What decode replicas have room for: the KV of whole answers, and slots in a batch. Pure.

Both are promised before they are needed, so that no stream stands still for want of one. Of either
the batch lane leaves a part to the others, but for a request that is larger than the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.placement.replica_load import ReplicaLoadTracker
from cluster.placement.types import PlacementRequest, one_of
from cluster.replica_record import ReplicaRecord
from engine.types.lane_quota import most_of


class DecodeCapacity:
    """The room that is left. `overcommit` times a pool's blocks may be promised.

    Without `batch_slots` a replica's batch is formed of those who wait there, and has room for all.
    """

    def __init__(
        self, load_tracker: ReplicaLoadTracker, overcommit: float = 1.0, *, batch_slots: bool = True
    ) -> None:
        self._load_tracker = load_tracker
        self._overcommit = overcommit
        self._batch_slots = batch_slots

    def blocks_shortfall(self, records: Sequence[ReplicaRecord], ask: PlacementRequest) -> int:
        """Choices for which these replicas together have no blocks for prompt and answer."""
        return self._short(records, ask, batch_slots=False)

    def slots_shortfall(self, records: Sequence[ReplicaRecord], ask: PlacementRequest) -> int:
        """Choices for which they have no blocks, or no place in a batch."""
        return self._short(records, ask, batch_slots=self._batch_slots)

    def full(self, record: ReplicaRecord, ask: PlacementRequest) -> bool:
        """Whether it has no room for one choice of this request."""
        return self.slots_shortfall([record], one_of(ask)) > 0

    def _short(
        self, records: Sequence[ReplicaRecord], ask: PlacementRequest, *, batch_slots: bool
    ) -> int:
        def fitting(batch: bool, *, empty: bool = False) -> int:
            return sum(
                self._fitting(r, ask, batch, batch_slots=batch_slots, empty=empty) for r in records
            )

        # What its part could never hold may have what is free of the whole.
        batch = ask.batch and fitting(True, empty=True) >= ask.choices
        return max(0, ask.choices - fitting(batch))

    def _fitting(
        self,
        record: ReplicaRecord,
        ask: PlacementRequest,
        batch: bool,
        *,
        batch_slots: bool,
        empty: bool,
    ) -> int:
        """Choices that fit beside those that are there; beside nobody, if it is to be `empty`."""
        load, there = record.load, int(self._overcommit * record.load.blocks_total)
        blocks = most_of(there, batch=batch) - (0 if empty else self._load_tracker.blocks(record))
        fit = max(0, blocks) // max(1, blocks_of(record, ask))
        # Whose batch has no known size has slots for all.
        if not batch_slots or load.batch_limit == 0:
            return fit
        requests = 0 if empty else self._load_tracker.requests(record)
        return min(fit, max(0, most_of(load.batch_limit, batch=batch) - requests))


def blocks_of(record: ReplicaRecord, ask: PlacementRequest) -> int:
    """Blocks for prompt and answer of one choice."""
    size = max(1, record.load.block_size)
    return -(-ask.most_tokens // size)
