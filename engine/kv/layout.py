"""The layout of KV blocks, which two replicas must share to exchange blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Heads and head size of one layer's keys (and of its values)."""

    kv_heads: int
    head_size: int


@dataclass(frozen=True)
class KvLayout:
    """The shape of a block: `layers` in order, tokens per block, element type, and the model.

    A block of one layer travels as keys then values, each [block_size, kv_heads, head_size],
    unless it is copied from cache to cache.
    """

    layers: tuple[LayerShape, ...]
    block_size: int
    dtype: str
    model_identity: str

    @cached_property
    def numbers_before(self) -> tuple[int, ...]:
        """The count of numbers of a token's KV before each layer; the last entry counts all."""
        return (0, *accumulate(2 * shape.kv_heads * shape.head_size for shape in self.layers))

    def blocks_for(self, tokens: int) -> int:
        """The number of blocks for that many tokens."""
        return -(-tokens // self.block_size)

    def difference(self, other: KvLayout) -> str | None:
        """The difference of the two layouts in words; None when blocks can be exchanged."""
        for name in ("block_size", "dtype", "model_identity"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"{name}: {mine} here, {theirs} there"
        if len(self.layers) != len(other.layers):
            return f"layers: {len(self.layers)} here, {len(other.layers)} there"
        for index, (mine, theirs) in enumerate(zip(self.layers, other.layers, strict=True)):
            if mine != theirs:
                return f"layer {index}: {mine} here, {theirs} there"
        return None
