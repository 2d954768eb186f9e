"""Cutting a transfer into frames: both sides compute the same plan, and the receiver compares.

A transfer is sent in *extents*. An extent is the whole transfer, or the part that a chunk of the
prompt, or some layers of a chunk, has just computed. Each extent is cut into frames of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby

from engine.errors import ConfigError
from engine.kv.layout import KvLayout
from engine.kv.memory import block_bytes

# Tuned: the time of one empty frame, in bytes copied from blocks to blocks in that time.
_FRAME_COST_BYTES = 1 << 19
# Tuned: no frame is cut smaller than this.
_SMALL_FRAME_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FramePart:
    """The layers and the positions in the transfer's block list of one message, half open."""

    layer_start: int
    layer_stop: int
    block_start: int
    block_stop: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Extent:
    """The layers and the positions in the transfer's block list of one extent, half open."""

    layer_start: int
    layer_stop: int
    block_start: int
    block_stop: int


class Coverage:
    """The number of leading blocks of each layer that the extents of one transfer cover."""

    def __init__(self, layers: int, blocks: int) -> None:
        self._blocks = blocks
        self._stops = [0] * layers

    @property
    def whole(self) -> bool:
        """Whether the extents cover every block of every layer."""
        return min(self._stops) == self._blocks

    def reach(self, block_stop: int, layer_stop: int) -> None:
        """Extend the leading layers to that block; a layer that is further stays as it is."""
        for layer in range(layer_stop):
            self._stops[layer] = max(self._stops[layer], min(block_stop, self._blocks))

    def beyond(self, other: Coverage) -> tuple[Extent, ...]:
        """The extents covered here but not in `other`; layers with equal blocks share an extent."""
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
        """Add the extent; False if it does not begin exactly where its layers end."""
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
    """The frames of an extent: several whole layers each, or an even range of one layer's blocks.

    No frame is larger than `frame_bytes`, which is at least one block of the largest layer.
    """
    parts: list[FramePart] = []
    first = part_bytes = 0
    block_start, block_stop = extent.block_start, extent.block_stop
    for layer in range(extent.layer_start, extent.layer_stop):
        size = (block_stop - block_start) * block_bytes(layout, layer, layer + 1)
        if part_bytes and part_bytes + size > frame_bytes:
            parts.append(FramePart(first, layer, block_start, block_stop, part_bytes))
            part_bytes = 0
        if size > frame_bytes:
            parts.extend(_split_layer(layout, layer, extent, frame_bytes))
            continue
        if not part_bytes:
            first = layer
        part_bytes += size
    if part_bytes:
        parts.append(FramePart(first, extent.layer_stop, block_start, block_stop, part_bytes))
    return tuple(parts)


def whole_part(layout: KvLayout, extent: Extent) -> FramePart:
    """The extent as one part: blocks that are copied in place are not cut into frames."""
    size = extent_bytes(layout, extent)
    return FramePart(
        extent.layer_start, extent.layer_stop, extent.block_start, extent.block_stop, size
    )


def frame_size(layout: KvLayout, extent: Extent, limit: int) -> int:
    """The frame size for an extent, in bytes, at most `limit`.

    A small extent gets small frames, so that several of them are under way at a time.
    """
    whole = extent_bytes(layout, extent)
    # This size minimises the sum of the first frame's latency and the fixed cost of all frames.
    wanted = max(_SMALL_FRAME_BYTES, math.isqrt(whole * _FRAME_COST_BYTES))
    return min(limit, max(wanted, largest_block(layout)))


def extent_bytes(layout: KvLayout, extent: Extent) -> int:
    """The size of an extent in bytes."""
    blocks = extent.block_stop - extent.block_start
    return blocks * block_bytes(layout, extent.layer_start, extent.layer_stop)


def largest_block(layout: KvLayout) -> int:
    """The size in bytes of one block of the largest layer."""
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
