"""The replicas that can take a request, and the free capacity of decode replicas. Pure.

Decode capacity has two parts: KV blocks for prompts with whole answers, and slots in decode
batches. Both are promised before they are needed, so that no stream waits for them later. A request
needs its slot from the hand-over of its prompt on, so streams that are predicted to end before that
leave their slots to it. The batch lane leaves a part of both to the other lanes, except for a
request that is larger than its part.
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.placement.cost_model import CostModel
from cluster.placement.replica_load import ReplicaLoadTracker
from cluster.placement.types import PlacementRequest, one_of
from cluster.replica_record import ReplicaRecord
from engine.errors import PromptTooLong, Unavailable
from engine.types.lane_quota import most_of

# Bound: a client's wait where no replica can serve its request now.
_RETRY_AFTER_S = 2.0


class DecodeCapacity:
    """The capacity that decode replicas have left.

    Requests are promised `overcommit` times the blocks of a pool. Without `batch_slots` a replica
    forms its batches of the requests that wait there, so it has slots for all. `costs` knows how
    long requests stay. `within_s` is the time until the prompt of a request begins to be computed.
    """

    def __init__(
        self,
        load_tracker: ReplicaLoadTracker,
        overcommit: float = 1.0,
        *,
        batch_slots: bool = True,
        costs: CostModel | None = None,
    ) -> None:
        self._load_tracker = load_tracker
        self._costs = costs or CostModel()
        self._overcommit = overcommit
        self._batch_slots = batch_slots

    def blocks_shortfall(self, records: Sequence[ReplicaRecord], request: PlacementRequest) -> int:
        """Choices for which these replicas together have no blocks for prompt and answer."""
        return self._shortfall(records, request, None)

    def slots_shortfall(
        self, records: Sequence[ReplicaRecord], request: PlacementRequest, within_s: float = 0.0
    ) -> int:
        """Choices for which these replicas together have no blocks, or no batch slot."""
        return self._shortfall(records, request, within_s if self._batch_slots else None)

    def is_full(
        self, record: ReplicaRecord, request: PlacementRequest, within_s: float = 0.0
    ) -> bool:
        """Whether the replica has no capacity for one choice of the request."""
        return self.slots_shortfall([record], one_of(request), within_s) > 0

    def least_loaded(
        self, records: Sequence[ReplicaRecord], request: PlacementRequest, within_s: float = 0.0
    ) -> ReplicaRecord:
        """The replica with capacity, if there is any, and the fewest requests."""

        def order(record: ReplicaRecord) -> tuple[bool, int, int]:
            return self.is_full(record, request, within_s), *self._load_tracker.rank(record)

        return min(records, key=order)

    def _shortfall(
        self, records: Sequence[ReplicaRecord], request: PlacementRequest, within_s: float | None
    ) -> int:
        """See `slots_shortfall`; `within_s` None: batch slots do not count."""

        def feasible(batch: bool, *, empty: bool = False) -> int:
            return sum(
                self._choice_capacity(record, request, batch, within_s, empty=empty)
                for record in records
            )

        # A request that the batch lane's part could never hold may use the whole.
        batch = request.batch and feasible(True, empty=True) >= request.choices
        return max(0, request.choices - feasible(batch))

    def _choice_capacity(
        self,
        record: ReplicaRecord,
        request: PlacementRequest,
        batch: bool,
        within_s: float | None,
        *,
        empty: bool,
    ) -> int:
        """The number of choices that a replica can take beside its requests, or if `empty`."""
        load, total = record.load, int(self._overcommit * record.load.blocks_total)
        blocks = most_of(total, batch=batch) - (0 if empty else self._load_tracker.blocks(record))
        choices = max(0, blocks) // max(1, blocks_of(record, request))
        # A replica that reports no limit has slots for all.
        if within_s is None or load.batch_limit == 0:
            return choices
        taken = 0 if empty else self._slots_taken(record, within_s)
        return min(choices, max(0, most_of(load.batch_limit, batch=batch) - taken))

    def _slots_taken(self, record: ReplicaRecord, within_s: float) -> int:
        """The requests that still have a slot, or need one, after that time.

        Requests end at the rate at which they come while their number stays (Little, 1961). Those
        that end are streams. Before the first has ended the rate is not known.
        """
        requests = self._load_tracker.requests(record)
        stream_s = self._costs.stream_s(record.id)
        if not stream_s:
            return requests
        ending = requests * min(1.0, within_s / stream_s)
        return requests - min(int(ending), record.load.streams)


def blocks_of(record: ReplicaRecord, request: PlacementRequest) -> int:
    """The blocks for prompt and answer of one choice."""
    size = max(1, record.load.block_size)
    return -(-request.most_tokens // size)


def token_capacity(record: ReplicaRecord) -> int:
    """The tokens whose KV an empty replica can hold."""
    return record.load.blocks_total * record.load.block_size


def large_enough(pool: str, replicas: Sequence[ReplicaRecord], tokens: int) -> list[ReplicaRecord]:
    """The replicas of a pool that can hold so many tokens.

    Raises Unavailable where the pool is empty, and PromptTooLong where no replica is large enough.
    """
    if not replicas:
        raise Unavailable(f"no healthy {pool} replica", retry_after_s=_RETRY_AFTER_S)
    able = [record for record in replicas if tokens <= token_capacity(record)]
    if not able:
        most = max(token_capacity(record) for record in replicas)
        raise PromptTooLong(
            f"the prompt is too long: {tokens} tokens do not fit the {pool} pool, "
            f"which holds {most}",
            field="prompt",
        )
    return able


def is_compatible(prefill: ReplicaRecord, decode: ReplicaRecord) -> bool:
    """Whether both replicas have the same weights and the same KV layout."""
    return prefill.kv_identity == decode.kv_identity


def with_partner(
    prefill: Sequence[ReplicaRecord], decode: Sequence[ReplicaRecord]
) -> list[ReplicaRecord]:
    """The prefill replicas that have a decode replica to hand KV to.

    While versions change, there are replicas of two KV layouts. Raises Unavailable where no pair
    has the same.
    """
    found = [one for one in prefill if any(is_compatible(one, other) for other in decode)]
    if not found:
        raise Unavailable(
            "no prefill and decode replica have the same weights and KV layout",
            retry_after_s=_RETRY_AFTER_S,
        )
    return found
