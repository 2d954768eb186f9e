"""The `decode` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import require


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How many replicas generate, and how many sequences share a step.

    `max_batch` bounds the sequences of one step; `max_waiting` bounds the queue before it.
    """

    replicas: int = 1
    max_batch: int = 64
    max_waiting: int = 256

    def __post_init__(self) -> None:
        require(self.replicas >= 1, "replicas must be at least 1")
        require(self.max_batch >= 1, "max_batch must be at least 1")
        require(self.max_waiting >= 1, "max_waiting must be at least 1")
