"""Forecasts one prompt on each replica, from its cost and the prompts that wait there. Pure."""

from __future__ import annotations

from cluster.placement.candidate import PlacementCandidate, PlacementQuery
from cluster.placement.cost_model import CostModel
from cluster.placement.edf_forecast import EdfPrompt, forecast_prompt
from cluster.placement.prefill_backlog import edf_prompts
from cluster.placement.prefix_affinity import KnownPrefixes
from cluster.placement.replica_load import ReplicaLoadTracker
from cluster.placement.types import PlacementRequest
from cluster.replica_record import ReplicaRecord
from engine.types.urgency import raised

# Tuned: a prompt that needs more than its budget even alone is due after so many times its need.
DUE_ALONE = 1.2


class PromptForecaster:
    """Forecasts a request's prompt on a replica."""

    def __init__(
        self, costs: CostModel, load_tracker: ReplicaLoadTracker, prefixes: KnownPrefixes
    ) -> None:
        self.costs = costs
        self.load_tracker = load_tracker
        self._prefixes = prefixes

    def candidate(
        self, record: ReplicaRecord, query: PlacementQuery, slower: float = 1.0
    ) -> PlacementCandidate:
        """The forecast of the prompt on a replica that is `slower` than its costs say.

        All choices of the request are computed there. Prompts that wait raise the urgency.
        """
        request, now, margin_s = query.request, query.now, query.margin_s
        cost, backlog = self.costs.prefill(record.id), self.load_tracker.backlog(record.id)
        urgency = query.urgency
        if not request.batch:
            urgency = raised(urgency, backlog.urgency, behind=True)
        cached = self.cached(record, request)
        missing = request.prompt_tokens - cached
        alone_s = request.choices * slower * cost.seconds(missing, cached, urgency)
        added_s = request.choices * slower * cost.seconds(missing, cached, urgency, queued=True)
        flush_s = self.costs.flush_s
        needed_s = DUE_ALONE * alone_s + margin_s + flush_s
        deadline_s = request.arrived_s + max(request.budget_s, needed_s) - flush_s
        waiting = edf_prompts(backlog, cost, now, request.batch, urgency)
        others = backlog.others_of(record.load)
        lead_s = cost.seconds(others, urgency=urgency, queued=True)
        forecast = forecast_prompt(waiting, EdfPrompt(alone_s, deadline_s), lead_s, now, margin_s)
        return PlacementCandidate(
            query, record, cached, missing, alone_s, added_s, deadline_s, forecast, urgency
        )

    def cached(self, record: ReplicaRecord, request: PlacementRequest) -> int:
        """The prompt's tokens that are known to be in the replica's cache; never all of them.

        Tokens that are scored must be computed.
        """
        if not request.digests:
            return 0
        needed_from = (request.scored_from or request.prompt_tokens) - 1
        usable = needed_from // record.load.block_size
        known = self._prefixes.longest(record.id, request.digests[:usable])
        return known * record.load.block_size
