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
    """A token after the first two is held for `ms`, to be sent with those after it.

    At most `tokens` are sent together. One that comes `ms` after what was sent last is not held.
    """

    ms: float = 40.0
    tokens: int = 24

    def __post_init__(self) -> None:
        require(self.ms > 0, "ms must be positive; stream: tokens sends each token by itself")
        require(self.tokens >= 1, "tokens must be at least 1")


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """What one kind of traffic may expect and may ask for.

    Requests are admitted where first tokens come within `ttft_budget_ms` and the others at most
    `itl_budget_ms` apart; those of the `batch` lane wait, however late they are. With
    `decode.batching: window` alone, a decode batch may wait for `batch_window_ms` to fill; None:
    for `decode.window_ms`. `stream` says in which pieces a streamed answer comes
    (`cluster/config/stream_mode.py`); `flush` makes `chunks`. A `canary` serves a share of them as
    those of another endpoint.
    """

    lane: Lane = "interactive"
    ttft_budget_ms: float = 500.0
    itl_budget_ms: float = 60.0
    batch_window_ms: float | None = None
    max_output_tokens: int = 1024
    stream: StreamMode = "chunks"
    flush: FlushConfig = field(default_factory=FlushConfig)
    canary: CanaryConfig | None = None

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
    def batch_window_s(self) -> float | None:
        """`batch_window_ms` in seconds."""
        return None if self.batch_window_ms is None else self.batch_window_ms / 1000


# Where none are configured: what people wait for, scoring, and work that nobody waits for.
ENDPOINTS: Mapping[str, EndpointConfig] = {
    "chat": EndpointConfig(),
    "score": EndpointConfig(lane="scoring", ttft_budget_ms=30_000),
    "batch": EndpointConfig(lane="batch", max_output_tokens=8192),
}
