"""Forecasts when a stream that lost its replica goes on at another replica. Pure.

A decode replica computes such streams in order, shortest first, beside the steps of its other
streams. So a stream that comes now goes on after all of them at the latest.
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.placement.decode_capacity import DecodeCapacity
from cluster.placement.prefill_backlog import edf_prompts
from cluster.placement.prompt_forecast import PromptForecaster
from cluster.placement.types import PlacementRequest
from cluster.replica_record import ReplicaRecord

# Streams that are computed again get as much time as the steps beside them.
_BESIDE_STEPS = 2


class ResumeForecaster:
    """Compares decode replicas for streams whose tokens must be computed again."""

    def __init__(self, forecaster: PromptForecaster, capacity: DecodeCapacity) -> None:
        self._forecaster = forecaster
        self._capacity = capacity

    def soonest(
        self, records: Sequence[ReplicaRecord], request: PlacementRequest, now: float
    ) -> ReplicaRecord:
        """The replica with capacity, if there is any, where the stream goes on soonest.

        Of equals it is the replica with the fewest requests.
        """
        tracker = self._forecaster.load_tracker

        def order(record: ReplicaRecord) -> tuple[bool, float, int, int]:
            full = self._capacity.is_full(record, request)
            return full, self.seconds(record, request, now), *tracker.rank(record)

        return min(records, key=order)

    def seconds(self, record: ReplicaRecord, request: PlacementRequest, now: float) -> float:
        """The seconds until the stream's next token on a replica that has nothing of it yet."""
        cached = self._forecaster.cached(record, request)
        cost = self._forecaster.costs.prefill(record.id)
        own_s = cost.seconds(request.prompt_tokens - cached, cached)
        return self.left_s(record, now) + self._slower(record) * own_s

    def left_s(self, record: ReplicaRecord, now: float) -> float:
        """The seconds until the replica has computed all prompts and streams that wait there."""
        cost = self._forecaster.costs.prefill(record.id)
        backlog = self._forecaster.load_tracker.backlog(record.id)
        ours_s = sum(one.length for one in edf_prompts(backlog, cost, now))
        return self._slower(record) * (ours_s + cost.seconds(backlog.others_of(record.load)))

    def _slower(self, record: ReplicaRecord) -> int:
        return _BESIDE_STEPS if record.load.streams else 1
