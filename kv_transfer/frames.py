"""Cutting a transfer into frames, purely: both sides compute the same plan and compare."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ConfigError
from engine.kv_cache import block_bytes
from engine.layout import KvLayout


@dataclass(frozen=True, slots=True)
class FramePart:
    """Layers and positions in the transfer's block list that one message carries, half open."""

    layer_start: int
    layer_stop: int
    block_start: int
    block_stop: int
    bytes: int


def plan_frames(layout: KvLayout, blocks: int, frame_bytes: int) -> tuple[FramePart, ...]:
    """As few frames as fit the size: whole layers together, or ranges of blocks of one layer."""
    parts: list[FramePart] = []
    first = held = 0
    for layer in range(len(layout.layers)):
        size = blocks * block_bytes(layout, layer, layer + 1)
        if held and held + size > frame_bytes:
            parts.append(FramePart(first, layer, 0, blocks, held))
            held = 0
        if size > frame_bytes:
            parts.extend(_split_layer(layout, layer, blocks, frame_bytes))
            continue
        if not held:
            first = layer
        held += size
    if held:
        parts.append(FramePart(first, len(layout.layers), 0, blocks, held))
    return tuple(parts)


def _split_layer(layout: KvLayout, layer: int, blocks: int, frame_bytes: int) -> list[FramePart]:
    one = block_bytes(layout, layer, layer + 1)
    step = frame_bytes // one
    return [
        FramePart(layer, layer + 1, start, stop, (stop - start) * one)
        for start in range(0, blocks, step)
        for stop in (min(start + step, blocks),)
    ]


def check_frame_bytes(layout: KvLayout, frame_bytes: int) -> None:
    """ConfigError unless a frame can hold one block of the largest layer."""
    largest = max(block_bytes(layout, i, i + 1) for i in range(len(layout.layers)))
    if frame_bytes < largest:
        raise ConfigError(f"kv.frame_bytes: {frame_bytes} cannot hold a block of {largest} bytes")
