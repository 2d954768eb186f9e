"""The `decode` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.config import require

BatchingName = Literal["continuous", "static", "window"]


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How many replicas generate, and how many sequences share a step.

    `max_batch` bounds the sequences of one step, fewer where a step of so many takes longer than
    `itl_budget_ms`; `max_waiting` bounds the queue before it. What a replica computes beside
    its steps is cut between layers, so that a step ends no later after the one before than that
    budget, and than `itl_factor` steps that nothing disturbs; None: the budget alone counts. For
    prompts in urgency the gap may be longer, within the budget.

    `batching` other than `continuous` is there to be compared with it: a batch runs until all of
    its requests have ended, and only then the next one is formed, with `window` not before one of
    those that wait has done so for `window_ms`, or its endpoint's `batch_window_ms`, or when it is
    full.
    """

    replicas: int = 1
    max_batch: int = 64
    max_waiting: int = 256
    itl_budget_ms: float = 60.0
    itl_factor: float | None = 2.0
    batching: BatchingName = "continuous"
    window_ms: float = 50.0

    def __post_init__(self) -> None:
        require(self.replicas >= 1, "replicas must be at least 1")
        require(self.max_batch >= 1, "max_batch must be at least 1")
        require(self.max_waiting >= 1, "max_waiting must be at least 1")
        require(self.itl_budget_ms > 0, "itl_budget_ms must be positive")
        require(self.window_ms > 0, "window_ms must be positive")
        require(
            self.itl_factor is None or self.itl_factor >= 1,
            "itl_factor must be at least 1",
        )
