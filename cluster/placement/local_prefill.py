"""Local prefill: when a decode replica computes a prompt itself, beside its streams. Pure.

A decode replica that has more of the prompt cached does less work than a prefill replica, as after
a turn of a chat. A decode replica with a device of its own also computes a short prompt that it
ends before the prompt's turn would come on a prefill replica. `shared_cores.py` has the rule for a
device that both share (decisions 18 and 19).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cluster.placement import shared_cores
from cluster.placement.candidate import PlacementCandidate, PlacementQuery
from cluster.placement.decode_capacity import DecodeCapacity
from cluster.placement.prompt_forecast import PromptForecaster
from cluster.placement.types import PlacementRequest
from cluster.replica_record import ReplicaRecord

# Start value: the least part of the inter-token latency that a decode replica has for prompts.
_LEAST_SLACK = 0.25


class LocalPrefill:
    """Chooses the decode replica that computes a prompt itself.

    A decode replica computes at most `most_tokens` of a prompt (0: none), and only while it has
    capacity for the answer.
    """

    def __init__(
        self,
        most_tokens: int,
        forecaster: PromptForecaster,
        capacity: DecodeCapacity,
    ) -> None:
        self._most_tokens = most_tokens
        self._forecaster = forecaster
        self._capacity = capacity

    def best(
        self,
        decode: Sequence[ReplicaRecord],
        query: PlacementQuery,
        elsewhere: PlacementCandidate,
        shared: Mapping[str, bool],
    ) -> PlacementCandidate | None:
        """The decode replica that should compute the prompt, instead of the replica `elsewhere`.

        `shared` has the devices of prefill replicas, and whether they are busy. None: there is no
        such decode replica.
        """
        found, request, loads = [], query.request, self._forecaster.load_tracker
        for record in decode:
            missing = request.prompt_tokens - self._forecaster.cached(record, request)
            requests = loads.requests(record)
            if missing > self._most_tokens or self._capacity.is_full(record, request):
                continue
            slower = self._slower(record, elsewhere, request)
            here = self._forecaster.candidate(record, query, slower)
            busy = shared.get(record.device)
            if (
                _is_local_prefill(here, elsewhere)
                if busy is None
                else shared_cores.is_local_prefill(here, elsewhere, requests, busy=busy)
            ):
                found.append(here)
        return min(found, key=lambda one: (-one.cached, *loads.rank(one.record)), default=None)

    def _slower(
        self, record: ReplicaRecord, elsewhere: PlacementCandidate, request: PlacementRequest
    ) -> float:
        """The slowness of a decode replica over its start values, before it was observed.

        It is taken to compute as fast as the other replica in the time that its steps leave.
        """
        costs = self._forecaster.costs
        cost = costs.prefill(record.id)
        if cost.learned:
            return 1.0
        step_s = costs.step_s(record.id, self._forecaster.load_tracker.requests(record))
        slack = max(_LEAST_SLACK, 1 - step_s / request.itl_s)
        known_s = costs.prefill(elsewhere.record.id).seconds(request.prompt_tokens)
        return known_s / cost.seconds(request.prompt_tokens) / slack


def _is_local_prefill(here: PlacementCandidate, elsewhere: PlacementCandidate) -> bool:
    """Whether a decode replica with its own device should compute the prompt.

    It has more of the prompt cached, or ends before the prompt would begin elsewhere.
    """
    sooner = here.forecast.ends_s < elsewhere.forecast.ends_s - elsewhere.alone_s
    return here.cached > elsewhere.cached or (sooner and here.forecast.feasible)
