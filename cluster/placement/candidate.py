"""A replica that could compute a prompt, and the forecast for the prompt there. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.placement.edf_forecast import EdfForecast
from cluster.placement.types import PlacementRequest
from cluster.replica_record import ReplicaRecord
from engine.types.urgency import Urgency


@dataclass(frozen=True, slots=True)
class PlacementQuery:
    """A request that is planned at `now`, with a prompt of that urgency.

    The first token is to come `margin_s` before it is due, because predictions are never exact.
    """

    request: PlacementRequest
    now: float
    margin_s: float
    urgency: Urgency


@dataclass(frozen=True, slots=True)
class PlacementCandidate:
    """A replica for a prompt, and the forecast for the prompt there.

    `cached` tokens of the prompt are in the cache of the replica, and `missing` tokens are not.
    Computing them takes `alone_s` seconds at the `urgency` that the prompt has there. They add
    `added_s` to a queue, where prompts share passes. The prompt is due at `deadline_s`.
    """

    query: PlacementQuery
    record: ReplicaRecord
    cached: int
    missing: int
    alone_s: float
    added_s: float
    deadline_s: float
    forecast: EdfForecast
    urgency: Urgency = Urgency.NONE

    @property
    def cost_s(self) -> float:
        """The cost in seconds: the end of the prompt, and the delay of other prompts."""
        return self.forecast.ends_s + self.forecast.behind * self.alone_s

    @property
    def wait_s(self) -> float:
        """The seconds until the prompt begins to be computed."""
        return max(0.0, self.forecast.ends_s - self.alone_s - self.query.now)

    @property
    def is_in_budget(self) -> bool:
        """Whether the prompt is on time by its own budget.

        A prompt that needs more than its budget even alone is due later than that.
        """
        request = self.query.request
        return self.forecast.feasible and self.deadline_s <= request.arrived_s + request.budget_s

    def is_on_time(self, slower: float) -> bool:
        """Whether the prompt is on time though all work before it takes `slower` times as long."""
        now, margin_s = self.query.now, self.query.margin_s
        return now + slower * (self.forecast.ends_s - now) <= self.deadline_s - margin_s
