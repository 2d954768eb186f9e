"""What decode replicas have room for: the KV of whole answers, and places in a batch. Pure.

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

    Without `places` a replica's batch is formed of those who wait there, and has room for all.
    """

    def __init__(
        self, holds: ReplicaLoadTracker, overcommit: float = 1.0, *, places: bool = True
    ) -> None:
        self._holds = holds
        self._overcommit = overcommit
        self._places = places

    def blocks_short(self, records: Sequence[ReplicaRecord], ask: PlacementRequest) -> int:
        """Choices for which these replicas together have no blocks for prompt and answer."""
        return self._short(records, ask, places=False)

    def places_short(self, records: Sequence[ReplicaRecord], ask: PlacementRequest) -> int:
        """Choices for which they have no blocks, or no place in a batch."""
        return self._short(records, ask, places=self._places)

    def full(self, record: ReplicaRecord, ask: PlacementRequest) -> bool:
        """Whether it has no room for one choice of this request."""
        return self.places_short([record], one_of(ask)) > 0

    def _short(
        self, records: Sequence[ReplicaRecord], ask: PlacementRequest, *, places: bool
    ) -> int:
        def fitting(batch: bool, *, empty: bool = False) -> int:
            return sum(self._fitting(r, ask, batch, places=places, empty=empty) for r in records)

        # What its part could never hold may have what is free of the whole.
        batch = ask.batch and fitting(True, empty=True) >= ask.choices
        return max(0, ask.choices - fitting(batch))

    def _fitting(
        self,
        record: ReplicaRecord,
        ask: PlacementRequest,
        batch: bool,
        *,
        places: bool,
        empty: bool,
    ) -> int:
        """Choices that fit beside those that are there; beside nobody, if it is to be `empty`."""
        load, there = record.load, int(self._overcommit * record.load.blocks_total)
        blocks = most_of(there, batch=batch) - (0 if empty else self._holds.blocks(record))
        fit = max(0, blocks) // max(1, blocks_of(record, ask))
        # Whose batch has no known size has places for all.
        if not places or load.batch_limit == 0:
            return fit
        requests = 0 if empty else self._holds.requests(record)
        return min(fit, max(0, most_of(load.batch_limit, batch=batch) - requests))


def blocks_of(record: ReplicaRecord, ask: PlacementRequest) -> int:
    """Blocks for prompt and answer of one choice."""
    size = max(1, record.load.block_size)
    return -(-ask.most_tokens // size)
