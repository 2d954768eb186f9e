"""Cutting a transfer into frames, purely: both sides compute the same plan and compare.

A transfer goes in *extents*: all of it at once, or what a chunk of the prompt, or some layers of
one, has just computed. Each extent is cut into frames of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby

from engine.errors import ConfigError
from engine.kv.layout import KvLayout
from engine.kv.memory import block_bytes

# A frame costs about as much time by itself as these bytes take from blocks to blocks.
_FRAME_COST_BYTES = 1 << 19
_SMALL_FRAME_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FramePart:
    """Layers and positions in the transfer's block list that one message carries, half open."""

    layer_start: int
    layer_stop: int
    block_start: int
    block_stop: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Extent:
    """Layers and positions in the transfer's block list that are sent together, half open."""

    layer_start: int
    layer_stop: int
    block_start: int
    block_stop: int


class Coverage:
    """How far the extents of one transfer go, layer by layer."""

    def __init__(self, layers: int, blocks: int) -> None:
        self._blocks = blocks
        self._stops = [0] * layers

    @property
    def whole(self) -> bool:
        """Whether every layer of every block is in."""
        return min(self._stops) == self._blocks

    def reach(self, block_stop: int, layer_stop: int) -> None:
        """The leading layers now go to that block, or as far as they did."""
        for layer in range(layer_stop):
            self._stops[layer] = max(self._stops[layer], min(block_stop, self._blocks))

    def beyond(self, other: Coverage) -> tuple[Extent, ...]:
        """What is covered here and not there, layers with the same blocks together."""
        extents: list[Extent] = []
        spans = zip(other._stops, self._stops, strict=True)
        layer = 0
        for (start, stop), alike in groupby(spans):
            count = len(list(alike))
            if start < stop:
                extents.append(Extent(layer, layer + count, start, stop))
            layer += count
        return tuple(extents)

    def add(self, extent: Extent) -> bool:
        """Take the extent in; False if it does not go on exactly where its layers ended."""
        layers = range(extent.layer_start, extent.layer_stop)
        if not layers or layers.start < 0 or layers.stop > len(self._stops):
            return False
        if not extent.block_start < extent.block_stop <= self._blocks:
            return False
        if any(self._stops[layer] != extent.block_start for layer in layers):
            return False
        for layer in layers:
            self._stops[layer] = extent.block_stop
        return True


def plan_frames(layout: KvLayout, extent: Extent, frame_bytes: int) -> tuple[FramePart, ...]:
    """Whole layers together, or even ranges of blocks of one layer, none above the size.

    The size is at least that of a block of the largest layer.
    """
    parts: list[FramePart] = []
    first = held = 0
    block_start, block_stop = extent.block_start, extent.block_stop
    for layer in range(extent.layer_start, extent.layer_stop):
        size = (block_stop - block_start) * block_bytes(layout, layer, layer + 1)
        if held and held + size > frame_bytes:
            parts.append(FramePart(first, layer, block_start, block_stop, held))
            held = 0
        if size > frame_bytes:
            parts.extend(_split_layer(layout, layer, extent, frame_bytes))
            continue
        if not held:
            first = layer
        held += size
    if held:
        parts.append(FramePart(first, extent.layer_stop, block_start, block_stop, held))
    return tuple(parts)


def in_one(layout: KvLayout, extent: Extent) -> FramePart:
    """All of it, where nothing is cut."""
    size = extent_bytes(layout, extent)
    return FramePart(
        extent.layer_start, extent.layer_stop, extent.block_start, extent.block_stop, size
    )


def frame_size(layout: KvLayout, extent: Extent, limit: int) -> int:
    """How large its frames are: smaller than the limit where the extent is small.

    So that several are under way at a time.
    """
    whole = extent_bytes(layout, extent)
    # The first frame's way and what all frames cost by themselves are least together here.
    wanted = max(_SMALL_FRAME_BYTES, math.isqrt(whole * _FRAME_COST_BYTES))
    return min(limit, max(wanted, largest_block(layout)))


def extent_bytes(layout: KvLayout, extent: Extent) -> int:
    """Bytes of all that is in it."""
    blocks = extent.block_stop - extent.block_start
    return blocks * block_bytes(layout, extent.layer_start, extent.layer_stop)


def largest_block(layout: KvLayout) -> int:
    """Bytes of one block of the largest layer."""
    return max(block_bytes(layout, layer, layer + 1) for layer in range(len(layout.layers)))


def _split_layer(layout: KvLayout, layer: int, extent: Extent, frame_bytes: int) -> list[FramePart]:
    one = block_bytes(layout, layer, layer + 1)
    blocks = extent.block_stop - extent.block_start
    frames = -(-blocks // (frame_bytes // one))
    step = -(-blocks // frames)
    return [
        FramePart(layer, layer + 1, start, stop, (stop - start) * one)
        for start in range(extent.block_start, extent.block_stop, step)
        for stop in (min(start + step, extent.block_stop),)
    ]


def check_frame_bytes(layout: KvLayout, frame_bytes: int) -> None:
    """ConfigError unless a frame can hold one block of the largest layer."""
    largest = largest_block(layout)
    if frame_bytes < largest:
        raise ConfigError(f"kv.frame_bytes: {frame_bytes} cannot hold a block of {largest} bytes")
