"""An assignment: the replicas of an admitted choice, and its share of their load. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cluster.placement.replica_load import LoadShare
from cluster.placement.types import PlacementPlan, PlacementRequest
from engine.types.urgency import Urgency


@dataclass(frozen=True, slots=True)
class FirstTokenTiming:
    """The times of a sent first token: seconds of computing, and of the way back.

    `passes` are those that computed the prompt, each by its part of the pass; 0: not known.
    """

    prefill_s: float
    cached_tokens: int
    flush_s: float
    ttft_s: float
    passes: float = 0.0


def _noted() -> None:
    """Do nothing: the request does not wait."""


@dataclass(slots=True)
class QueueWait:
    """A request's wait in the router's queue; nothing is set where it did not wait there.

    `reason` is the last reason for which it waited. A request that `stood_behind` others was not
    decided about before its admission: the reason is that of the requests before it.
    `queued_before` is the number of requests before it when it came. It waited for `seconds`.
    While it waits, `look` notes the reason and the seconds of now.
    """

    reason: str | None = None
    stood_behind: bool = False
    queued_before: int | None = None
    seconds: float | None = None
    look: Callable[[], None] = field(default=_noted, compare=False, repr=False)

    def end(self) -> None:
        """Note what it waited for last, and no more."""
        self.look()
        self.look = _noted


@dataclass(slots=True)
class Assignment:
    """One admitted choice: its replica pair, and its share of their load until it is released.

    `shares` are those of the prompt and of the decode request. `assigned_s` is monotonic. `on_end`
    is called once, with the number of output tokens. A choice that `failed_over` lost the pair for
    which its first token was predicted.
    """

    request: PlacementRequest
    plan: PlacementPlan
    shares: tuple[LoadShare, LoadShare]
    assigned_s: float
    on_end: Callable[[int], None]
    failed_over: bool = False

    @property
    def urgency(self) -> Urgency:
        """The urgency of the choice's prompt: how long streams beside it should wait.

        It is PROMPTS at least, because streams may begin before the prompt is computed.
        """
        return max(Urgency.PROMPTS, self.plan.forecast.urgency)

    def prefilled(self) -> None:
        """Note that the prompt was computed or never will be. Idempotent."""
        self.shares[0].release()

    def release_load(self) -> None:
        """Release the choice's share of the load of both replicas. Idempotent."""
        for share in self.shares:
            share.release()

    def release(self, output_tokens: int = 0) -> None:
        """End the choice, which had so many output tokens. Idempotent."""
        self.release_load()
        on_end, self.on_end = self.on_end, _ended
        on_end(output_tokens)


def _ended(output_tokens: int) -> None:
    """Do nothing: the end of the choice was counted already."""
