"""The `prefill` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.config import require
from engine.scheduling.prompt_order import LaneShares


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """How many replicas compute prompts, and how many prompt tokens a pass has.

    With 0 `replicas` there is one pool: decode replicas take role `both` and compute every prompt
    themselves. `chunk_tokens` bounds the prompt tokens of one pass; `max_waiting` bounds the queue.
    A decode replica computes at most `local_prefill_tokens` of a prompt itself, where the prompt is
    short or the other tokens are cached there; 0: none. `lanes` has each lane's share of the
    tokens while several lanes have prompts.
    """

    replicas: int = 1
    chunk_tokens: int = 512
    max_waiting: int = 256
    local_prefill_tokens: int = 256
    lanes: LaneShares = field(default_factory=LaneShares)

    def __post_init__(self) -> None:
        require(self.replicas >= 0, "replicas must not be negative")
        require(self.chunk_tokens >= 1, "chunk_tokens must be at least 1")
        require(self.max_waiting >= 1, "max_waiting must be at least 1")
        require(self.local_prefill_tokens >= 0, "local_prefill_tokens must not be negative")
