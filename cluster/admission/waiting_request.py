"""A request at the gate: what it needs, and what it waits for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from cluster.admission.assignment import Assignment
from cluster.admission.policy import Reason
from cluster.admission.queue_position import QueuePositionListener
from cluster.config.tenant_limits import Need
from cluster.placement.types import PlacementRequest


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """Who waits; `left` is what is to be computed of its prompt, as far as caches are known.

    `alone_s` is what that takes of the replicas; None until somebody is there to compute it. One
    that `fits` would be in time if it had its place now, and nobody late for it.
    """

    ask: PlacementRequest
    left: int
    expected: bool
    arrival: int
    decided: asyncio.Future[list[Assignment]]
    listener: QueuePositionListener | None = None
    reason: Reason | None = None
    alone_s: float | None = None
    fits: bool = True

    @property
    def capped(self) -> bool:
        """Whether it waits for its own tenant's requests."""
        return self.reason is not None and self.reason.startswith("tenant_")

    @property
    def need(self) -> Need:
        """What it takes of its tenant's caps."""
        return need_of(self.ask)

    def waits_for(self, reason: Reason) -> None:
        """Why it is held; its computing is in others' way only where it waits for computing."""
        self.reason = reason
        known = reason != "starting" or self.alone_s is not None
        if reason != "ttft" and known:
            self.alone_s = 0.0


def need_of(ask: PlacementRequest) -> Need:
    """What a request takes of its tenant's caps."""
    return Need(ask.choices, ask.prompt_tokens, ask.choices * ask.most_tokens)
