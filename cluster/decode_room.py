"""What a decode replica has room for: the KV of whole answers, and places in its batch. Pure.

Both are promised before they are needed, so that no stream stands still for want of one. Of either
the batch lane leaves a part to the others.
"""

from __future__ import annotations

from cluster.holds import Holds
from cluster.membership import ReplicaRecord
from cluster.plan import Ask
from engine.lanes import most_of


class DecodeRoom:
    """The room that is left. `overcommit` times a pool's blocks may be promised.

    Without `places` a replica's batch is formed of those who wait there, and has room for all.
    """

    def __init__(self, holds: Holds, overcommit: float = 1.0, *, places: bool = True) -> None:
        self._holds = holds
        self._overcommit = overcommit
        self._places = places

    def blocks_short(self, record: ReplicaRecord, ask: Ask) -> int:
        """Blocks for prompt and answer that were promised already."""
        needed = self._holds.blocks(record) + ask.choices * blocks_of(record, ask)
        there = int(self._overcommit * record.load.blocks_total)
        return max(0, needed - most_of(there, batch=ask.batch))

    def places_short(self, record: ReplicaRecord, ask: Ask) -> int:
        """Places in the batch that were promised already; none where its size is not known."""
        if not self._places or record.load.batch_limit == 0:
            return 0
        needed = self._holds.requests(record) + ask.choices
        return max(0, needed - most_of(record.load.batch_limit, batch=ask.batch))

    def full(self, record: ReplicaRecord, ask: Ask) -> bool:
        """Whether it has no room for this request."""
        return self.blocks_short(record, ask) > 0 or self.places_short(record, ask) > 0


def blocks_of(record: ReplicaRecord, ask: Ask) -> int:
    """Blocks for prompt and answer of one choice."""
    size = max(1, record.load.block_size)
    return -(-ask.most_tokens // size)
