"""The `decode` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.config import require

BatchingName = Literal["continuous", "static", "window"]


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How many replicas generate, and how many sequences share a step.

    `max_batch` bounds the sequences of one step; the bound falls while steps take longer than
    `itl_budget_ms`. `max_waiting` bounds the queue before the batch. A replica cuts the prompts
    that it computes beside its steps between layers. So the time from one step to the next is at
    most `itl_budget_ms`, and at most `itl_factor` undisturbed steps (None: the budget alone
    counts). Beside urgent prompts this time may be longer, within the budget.

    `batching` other than `continuous` exists to be compared with it. A batch then runs until all
    of its requests have ended, and only then the next batch is formed. `window` forms it when it
    is full, or when a request has waited for `window_ms` or its endpoint's `batch_window_ms`.
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
