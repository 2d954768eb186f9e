"""An admitted choice: where it runs, and its share in the load of those replicas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cluster.placement.replica_load import LoadShare
from cluster.placement.types import PlacementPlan, PlacementRequest
from engine.types.urgency import Urgency


@dataclass(frozen=True, slots=True)
class FirstTokenTiming:
    """What is known when a first token has left: how long computing and the way back took."""

    prefill_s: float
    cached_tokens: int
    flush_s: float
    ttft_s: float


@dataclass(slots=True)
class Assignment:
    """One admitted choice: its pair, and its share in their load until it is released.

    One that was `moved` lost the place that it was promised its first token at.
    """

    ask: PlacementRequest
    plan: PlacementPlan
    holds: tuple[LoadShare, LoadShare]
    placed_s: float
    end: Callable[[int], None]
    moved: bool = False

    @property
    def urgency(self) -> Urgency:
        """How long streams beside its prompt are to wait for it.

        It is PROMPTS at least, because streams may begin before the prompt is computed.
        """
        return max(Urgency.PROMPTS, self.plan.forecast.urgency)

    def prefilled(self) -> None:
        """The prompt was computed, or never will be. Idempotent."""
        self.holds[0].release()

    def vacate(self) -> None:
        """Its replicas have nothing of it any more. Idempotent."""
        for hold in self.holds:
            hold.release()

    def release(self, output_tokens: int = 0) -> None:
        """The choice has ended, with so many tokens. Idempotent."""
        self.vacate()
        end, self.end = self.end, _ended
        end(output_tokens)


def _ended(output_tokens: int) -> None:
    """Whose end was counted already."""
