"""The `prefill` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.config import ByDevice, require
from engine.scheduling.prompt_order import LaneShares


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """How many replicas compute prompts, and how many prompt tokens a pass has."""

    replicas: int = 1
    """Replicas that compute prompts; with 0 there is one pool, and decode replicas take the role
    `both`.
    """
    chunk_tokens: int | ByDevice = "auto"
    """Prompt tokens of one pass, over all prompts in it; `auto`: 512 on a CPU, 2,048 on a GPU."""
    max_waiting: int = 256
    """Prompts that wait at a replica; more are refused."""
    local_prefill_tokens: int = 256
    """The most tokens of a prompt that a decode replica computes itself, where it has the rest
    cached or the prompt is short; 0 means none.
    """
    lanes: LaneShares = field(default_factory=LaneShares)
    """The share of the prompt tokens of each lane while several lanes want some."""

    def __post_init__(self) -> None:
        require(self.replicas >= 0, "replicas must not be negative")
        require(
            self.chunk_tokens == "auto" or self.chunk_tokens >= 1,
            "chunk_tokens must be at least 1",
        )
        require(self.max_waiting >= 1, "max_waiting must be at least 1")
        require(self.local_prefill_tokens >= 0, "local_prefill_tokens must not be negative")
