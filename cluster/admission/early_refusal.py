"""Refuses a request at its arrival, where so much waits before it that no wait can help. Pure.

That costs no tokenising, no plan and no task. A router that reads a request late from the
socket refuses it here, if the request would wait behind other requests.

The check knows a request by its text, so it estimates the tokens to compute, from requests before
it. It errs to the side of the request: the work before the request is counted at its least.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from cluster.placement.prompt_forecast import DUE_ALONE
from cluster.placement.types import Forecast, PlacementRequest

# Numerics: the weight of the newest request in the means.
_SMOOTHING = 0.05
# Bound: how long the work of a plan is known after it.
_KNOWN_S = 0.5


@dataclass(frozen=True, slots=True)
class ArrivingRequest:
    """A request before it is tokenised: `size` is its text in characters.

    The other fields are as in PlacementRequest.
    """

    size: int
    arrived_s: float
    budget_s: float
    key: Hashable
    tenant: str
    choices: int = 1
    batch: bool = False


@dataclass(frozen=True, slots=True)
class WorkAhead:
    """The work before a request.

    - `placed_s`: seconds of the work on the replica that would be done first.
    - `waiting_s`: seconds of all replicas for the prompts that wait before the request.
    - `slots_s`: seconds until the requests before it that wait for a batch slot have one.
    - `alone_s`: seconds of one replica for its own prompt, estimated; `interval_s` is as in
      Forecast.
    """

    placed_s: float = 0.0
    waiting_s: float = 0.0
    slots_s: float = 0.0
    alone_s: float = 0.0
    interval_s: float = 0.0

    @property
    def others_wait(self) -> bool:
        """Whether other requests wait before this one."""
        return self.waiting_s > 0.0 or self.slots_s > 0.0

    def too_long(self, arrival: ArrivingRequest, now: float, worth: float) -> bool:
        """Whether no wait can help.

        The first token is late even if the prompt itself takes no time, or it is predicted after
        `worth` budgets.
        """
        within_s = max(arrival.budget_s, DUE_ALONE * self.alone_s)
        begins_s = now - arrival.arrived_s + self.placed_s + self.waiting_s
        return begins_s > within_s or begins_s + self.alone_s > worth * within_s

    def too_many(self, until_s: float, now: float) -> bool:
        """Whether there is no batch slot by `until_s`, when the request must be decided."""
        return self.slots_s > 0.0 and now + self.slots_s > until_s


class SizeEstimate:
    """Learns from planned requests how much of a text must be computed, and how long it takes.

    `interval_s` is the one of the last plan, as in Forecast.
    """

    def __init__(self) -> None:
        self._tokens_each: float | None = None
        self._seconds_each = 0.0
        self._placed_s = 0.0
        self.interval_s = 0.0
        self._planned_s = float("-inf")

    def learn(
        self, request: PlacementRequest, left: int, forecast: Forecast, now: float, *, own: bool
    ) -> None:
        """Take a plan: `left` tokens are to be computed; `own`: on a device of its own."""
        if request.size and forecast.alone_s > 0.0:
            tokens, seconds = left / request.size, forecast.alone_s / max(1, left)
            first = self._tokens_each is None
            weight = 1.0 if first else _SMOOTHING
            known = self._tokens_each or 0.0
            self._tokens_each = known + weight * (tokens - known)
            self._seconds_each += weight * (seconds - self._seconds_each)
        if not own:
            self._placed_s, self.interval_s = forecast.work_s, forecast.interval_s
            self._planned_s = now

    def tokens(self, size: int) -> int:
        """The tokens to compute of a text of so many characters; 0 before anything is known."""
        return int(size * (self._tokens_each or 0.0))

    def ahead(self, size: int, waiting_s: float, slots_s: float, now: float) -> WorkAhead:
        """The work before a request of that size."""
        since_s = now - self._planned_s
        placed_s = max(0.0, self._placed_s - since_s) if since_s < _KNOWN_S else 0.0
        alone_s = self.tokens(size) * self._seconds_each
        return WorkAhead(placed_s, waiting_s, slots_s, alone_s, self.interval_s)
