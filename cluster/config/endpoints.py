"""The section `endpoints`: what one kind of traffic may expect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from cluster.config.canary import CanaryConfig
from engine.config import require
from engine.types.lane import Lane

StreamMode = Literal["tokens", "chunks", "progress", "whole"]


@dataclass(frozen=True, slots=True)
class FlushConfig:
    """How tokens are merged; neither the first two nor one behind a longer pause waits."""

    ms: float = 40.0
    """How long a token waits to be sent with the tokens after it."""
    tokens: int = 24
    """Tokens that are sent together at most."""

    def __post_init__(self) -> None:
        require(self.ms > 0, "ms must be positive; stream: tokens sends each token by itself")
        require(self.tokens >= 1, "tokens must be at least 1")


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """What one kind of traffic may expect and may ask for."""

    lane: Lane = "interactive"
    """The priority class, which has a share of the prompt tokens; work of the lane `batch` waits
    for capacity and is never refused for being late.
    """
    ttft_budget_ms: float = 500.0
    """When the first token is due after the arrival; a request that is predicted to miss it is
    refused.
    """
    itl_budget_ms: float = 60.0
    """The longest decode step of a batch that a request of the endpoint joins."""
    batch_window_ms: float | None = None
    """With `decode.batching: window`, how long a request waits for its batch to fill; without it,
    `decode.window_ms`.
    """
    max_output_tokens: int = 1024
    """The most tokens of an answer. A larger `max_tokens` is cut to it."""
    stream: StreamMode = "chunks"
    """In which pieces a streamed answer comes."""
    flush: FlushConfig = field(default_factory=FlushConfig)
    """How tokens are merged with `stream: chunks`."""
    canary: CanaryConfig | None = None
    """Another endpoint whose settings a share of the requests gets."""

    def __post_init__(self) -> None:
        require(self.ttft_budget_ms > 0, "ttft_budget_ms must be positive")
        require(self.itl_budget_ms > 0, "itl_budget_ms must be positive")
        require(
            self.batch_window_ms is None or self.batch_window_ms > 0,
            "batch_window_ms must be positive",
        )
        require(self.max_output_tokens >= 1, "max_output_tokens must be at least 1")
        require(
            self.stream == "chunks" or self.flush == FlushConfig(),
            f"flush is for stream: chunks, not {self.stream}",
        )

    @property
    def ttft_budget_s(self) -> float:
        """`ttft_budget_ms` in seconds."""
        return self.ttft_budget_ms / 1000

    @property
    def itl_budget_s(self) -> float:
        """`itl_budget_ms` in seconds, as admission compares it with decode steps."""
        return self.itl_budget_ms / 1000

    @property
    def batch_window_s(self) -> float | None:
        """`batch_window_ms` in seconds."""
        return None if self.batch_window_ms is None else self.batch_window_ms / 1000


# The endpoints without a configuration: for chats, for scoring, and for offline batches.
ENDPOINTS: Mapping[str, EndpointConfig] = {
    "chat": EndpointConfig(),
    "score": EndpointConfig(lane="scoring", ttft_budget_ms=30_000),
    "batch": EndpointConfig(lane="batch", max_output_tokens=8192),
}
