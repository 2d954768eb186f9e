"""The settings that are `auto` in the configuration, as they follow from a replica's device.

A GPU reads its weights so fast that a step of few sequences, or a pass of few tokens, leaves most
of it idle. Its passes are so short that the inter-token budget alone bounds them well, and that the
streams' tokens cost little in them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cluster.config.schema import TandemConfig


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """The limits of a replica's loops; the fields are as in the configuration.

    `origins` says for the log where each value comes from.
    """

    chunk_tokens: int
    max_batch: int
    itl_factor: float | None
    mixed_passes: bool
    origins: str = ""


_ON_CPU = LoopLimits(chunk_tokens=512, max_batch=64, itl_factor=2.0, mixed_passes=False)
_ON_GPU = LoopLimits(chunk_tokens=2048, max_batch=256, itl_factor=None, mixed_passes=True)


def loop_limits(config: TandemConfig, device: str) -> LoopLimits:
    """The limits of a replica on a device of that type, as torch names it."""
    usual = _ON_CPU if device == "cpu" else _ON_GPU
    chunk_tokens, max_batch = config.prefill.chunk_tokens, config.decode.max_batch
    itl_factor, mixed_passes = config.decode.itl_factor, config.decode.mixed_passes
    limits = LoopLimits(
        usual.chunk_tokens if chunk_tokens == "auto" else chunk_tokens,
        usual.max_batch if max_batch == "auto" else max_batch,
        usual.itl_factor if itl_factor == "auto" else itl_factor,
        usual.mixed_passes if mixed_passes == "auto" else mixed_passes,
    )
    origins = ", ".join(
        f"{key} {_shown(value)} ({_origin(configured, device)})"
        for key, value, configured in (
            ("prefill.chunk_tokens", limits.chunk_tokens, chunk_tokens),
            ("decode.max_batch", limits.max_batch, max_batch),
            ("decode.itl_factor", limits.itl_factor, itl_factor),
            ("decode.mixed_passes", limits.mixed_passes, mixed_passes),
        )
    )
    return replace(limits, origins=origins)


def _shown(value: float | None) -> str:
    """A value as it stands in a configuration."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def _origin(configured: object, device: str) -> str:
    return f"auto on {device}" if configured == "auto" else "configured"
