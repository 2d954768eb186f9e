"""The section `journal`: streams that outlive their connection."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import require

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """Resumable streams, whose requests and tokens are kept in the Redis of the directory."""

    detached_s: float = 60.0
    """How long a request goes on while no client listens; then it is cancelled."""
    keep_s: float = 300.0
    """How long a stream can be resumed after its end or its break."""
    stream_bytes: int = 4 * _MIB
    """The largest prompt and answer of one resumable request in the journal; larger requests are
    refused.
    """
    total_bytes: int = 256 * _MIB
    """What one router's streams may take in the journal; more are refused with a retry time."""

    def __post_init__(self) -> None:
        require(self.detached_s >= 0, "detached_s must not be negative")
        require(self.keep_s > 0, "keep_s must be positive")
        require(self.stream_bytes >= 1024, "stream_bytes must be at least 1024")
        require(self.total_bytes >= self.stream_bytes, "total_bytes must be at least stream_bytes")
