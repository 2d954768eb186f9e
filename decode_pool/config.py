"""The `decode` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.config import ByDevice, require

BatchingName = Literal["continuous", "static", "window"]


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How many replicas generate, and how many sequences share a step."""

    replicas: int = 1
    """Replicas that generate."""
    max_batch: int | ByDevice = "auto"
    """Sequences of one step; fewer new requests while steps take longer than `itl_budget_ms`.
    `auto`: 64 on a CPU, 256 on a GPU.
    """
    max_waiting: int = 256
    """Requests that wait for blocks at a replica; more are refused."""
    itl_budget_ms: float = 60.0
    """The longest time between two tokens of a stream that prompts beside the steps may cause.
    Beside a stream that is computed again it is two steps at least.
    """
    itl_factor: float | ByDevice | None = "auto"
    """The same bound in undisturbed steps: beside prompts a step ends at most so many of them after
    the step before; the tighter bound counts, except for urgent prompts and streams that are
    computed again; null means the budget alone. `auto`: 2 on a CPU, null on a GPU.
    """
    mixed_passes: bool | ByDevice = "auto"
    """Whether the streams of a replica get their tokens in the passes of its prompts, where such a
    pass keeps the ITL budget. Else steps and slices of passes take turns. `auto`: false on a CPU,
    true on a GPU.
    """
    batching: BatchingName = "continuous"
    """How a batch forms: `static` and `window` form the next batch when the last has ended, and are
    there for comparisons.
    """
    window_ms: float = 50.0
    """How long a request may wait for its batch to fill, with `batching: window`."""

    def __post_init__(self) -> None:
        require(self.replicas >= 1, "replicas must be at least 1")
        require(
            self.max_batch == "auto" or self.max_batch >= 1,
            "max_batch must be at least 1",
        )
        require(self.max_waiting >= 1, "max_waiting must be at least 1")
        require(self.itl_budget_ms > 0, "itl_budget_ms must be positive")
        require(self.window_ms > 0, "window_ms must be positive")
        require(
            self.itl_factor is None or self.itl_factor == "auto" or self.itl_factor >= 1,
            "itl_factor must be at least 1",
        )
