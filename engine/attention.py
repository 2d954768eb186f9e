"""Attention over paged KV, registered with `transformers` under the name `tandem`.

Keys and values of a step are written into their blocks, then read back by block table, so the
same function serves chunked prefill and decode. Plain torch; scaled_dot_product_attention does
the arithmetic, except where a model caps its scores or has attention sinks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.kv_cache import KvCache

NAME = "tandem"


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of queries that attend together.

    Either one sequence's chunk or many sequences' single tokens: `queries` tokens for each of
    `rows` sequences. `tables` is [rows, blocks]; `positions` [rows, queries] are the absolute
    positions of the queries, which also say how many keys each may see.
    """

    rows: int
    queries: int
    tables: torch.Tensor
    positions: torch.Tensor

    @property
    def tokens(self) -> int:
        """How many packed tokens the segment covers."""
        return self.rows * self.queries


@dataclass(slots=True)
class AttentionBatch:
    """How the packed tokens of one step map to blocks. Segments cover them in order.

    `slots` [tokens] is where each token's key and value go: block * block_size + offset.
    """

    cache: KvCache
    slots: torch.Tensor
    segments: list[Segment]
    _masks: dict[tuple[int, int | None], torch.Tensor] = field(default_factory=dict)

    def mask(self, index: int, window: int | None) -> torch.Tensor:
        """Which keys the queries of a segment may see: bool [rows, queries, keys]."""
        key = (index, window)
        if key not in self._masks:
            segment = self.segments[index]
            keys = segment.tables.shape[1] * self.cache.layout.block_size
            column = torch.arange(keys, device=segment.positions.device)
            row = segment.positions.unsqueeze(-1)
            seen = column <= row
            if window is not None:
                seen &= column > row - window
            self._masks[key] = seen
        return self._masks[key]


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    tandem_batch: AttentionBatch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend packed tokens: query [1, H, T, D], key and value [1, KV, T, D] → [1, T, H, D]."""
    layer = tandem_batch.cache.layers[module.layer_idx]  # type: ignore[index]
    heads, head_size = query.shape[1], query.shape[3]
    store = layer.flatten(1, 2)
    store[0].index_copy_(0, tandem_batch.slots, key[0].transpose(0, 1))
    store[1].index_copy_(0, tandem_batch.slots, value[0].transpose(0, 1))
    out = query.new_empty(1, query.shape[2], heads, head_size)
    start = 0
    for index, segment in enumerate(tandem_batch.segments):
        stop = start + segment.tokens
        part = _attend(
            query[0, :, start:stop].unflatten(1, (segment.rows, segment.queries)).transpose(0, 1),
            layer[0][segment.tables].flatten(1, 2).transpose(1, 2),
            layer[1][segment.tables].flatten(1, 2).transpose(1, 2),
            tandem_batch.mask(index, sliding_window),
            scaling=scaling if scaling is not None else head_size**-0.5,
            softcap=softcap,
            sinks=s_aux,
        )
        out[0, start:stop] = part.transpose(1, 2).flatten(0, 1)
        start = stop
    return out, None


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    *,
    scaling: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """[R, H, Q, D] over [R, KV, K, D] → [R, H, Q, D]; `mask` is [R, Q, K].

    Query heads that share a KV head are folded into the query axis, so keys are never repeated.
    """
    rows, heads, queries, head_size = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    folded = query.reshape(rows, kv_heads, group * queries, head_size)
    seen = mask.repeat(1, group, 1).unsqueeze(1)
    if softcap is None and sinks is None:
        out = scaled_dot_product_attention(folded, key, value, attn_mask=seen, scale=scaling)
    else:
        out = _capped(
            folded, key, value, seen, scaling, softcap, _per_query(sinks, kv_heads, queries)
        )
    return out.reshape(rows, heads, queries, head_size)


def _per_query(sinks: torch.Tensor | None, kv_heads: int, queries: int) -> torch.Tensor | None:
    """[H] sinks as [1, KV, group * queries, 1], matching the folded queries."""
    if sinks is None:
        return None
    return sinks.reshape(kv_heads, -1).repeat_interleave(queries, dim=1)[None, :, :, None]


def _capped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scaling: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention written out, for capped scores (Gemma 2) and attention sinks (gpt-oss)."""
    scores = (query @ key.transpose(-1, -2)) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return weights[..., : key.shape[-2]] @ value


class ShapeProbe:
    """Stands in for attention once, to learn each layer's KV heads and head size."""

    def __init__(self) -> None:
        self.layers: list[tuple[int, int, int, int]] = []

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """Record (layer, KV heads, key size, value size); attend to nothing."""
        self.layers.append((int(module.layer_idx), key.shape[1], key.shape[3], value.shape[3]))  # type: ignore[arg-type]
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None


def register(name: str, function: Callable[..., tuple[torch.Tensor, None]]) -> None:
    """Make an attention function known to `transformers` by name."""
    from transformers import AttentionInterface

    AttentionInterface.register(name, function)
