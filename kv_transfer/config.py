"""The configuration of KV transfers."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ConfigError

# Tuned: the bytes of a frame of KV in host memory.
_FRAME_BYTES = 8 << 20
# Tuned: the bytes of a frame of KV on a GPU, which costs a wait for the device. With its seal of
# 16 bytes the frame is a power of two, the unit in which pinned memory is allocated.
_GPU_FRAME_BYTES = (32 << 20) - 16


def frame_bytes_for(device: str) -> int:
    """The size in bytes of frames of KV on that kind of device."""
    return _GPU_FRAME_BYTES if device == "cuda" else _FRAME_BYTES


@dataclass(frozen=True, slots=True)
class TransferConfig:
    """Sizes, deadlines and bounds of the links of one replica; times in seconds.

    `transport` is `auto` or a name in the registry. `io_timeout_s` bounds one message on the data
    channel. Both ends must have opened it within `join_timeout_s`. A peer that is silent for
    `silence_s` counts as dead. `max_transfers` bounds the transfers of one link at a time.
    """

    transport: str = "auto"
    frame_bytes: int = _FRAME_BYTES
    staging_buffers: int = 4
    io_timeout_s: float = 5.0
    connect_timeout_s: float = 5.0
    join_timeout_s: float = 20.0
    heartbeat_s: float = 0.2
    silence_s: float = 1.0
    max_links: int = 64
    max_transfers: int = 1024

    def __post_init__(self) -> None:
        for name in ("frame_bytes", "staging_buffers", "max_links", "max_transfers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"kv.{name}: must be at least 1")
        times = ("io_timeout_s", "connect_timeout_s", "join_timeout_s", "heartbeat_s", "silence_s")
        for name in times:
            if getattr(self, name) <= 0:
                raise ConfigError(f"kv.{name}: must be more than 0")
        if self.silence_s < 2 * self.heartbeat_s:
            raise ConfigError("kv.silence_s: must span at least two heartbeats")
