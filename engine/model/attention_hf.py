"""Attention over paged KV, registered with `transformers` under the name `tandem`.

A step writes its keys and values into their blocks, then reads them back by block table. So the
same function serves chunked prefill and decode. scaled_dot_product_attention computes, except where
a model caps its scores or has attention sinks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.fp8.values import in_type
from engine.kv.memory import MOVED_AS
from engine.model.packed_batch import PackedBatch

NAME = "tandem"


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    tandem_batch: PackedBatch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend packed tokens: query [1, H, T, D], key and value [1, KV, T, D] → [1, T, H, D]."""
    store = tandem_batch.cache.layers[module.layer_idx]  # type: ignore[index]
    write_slots(store, tandem_batch.slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
    out = attend_segments(
        query[0].transpose(0, 1),
        store,
        tandem_batch,
        scaling=scaling if scaling is not None else query.shape[3] ** -0.5,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    return out.unsqueeze(0), None


def write_slots(
    store: torch.Tensor, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> None:
    """Put keys and values [T, KV, D] into their slots of a layer's store (see KvCache).

    In FP8, numbers beyond its largest become its largest.
    """
    moved = MOVED_AS.get(store.dtype, store.dtype)
    for rows, new in zip(store.view(moved).flatten(1, 2), (key, value), strict=True):
        rows.index_copy_(0, slots, in_type(new, store.dtype).view(moved))


def read_blocks(store: torch.Tensor, tables: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Keys or values of blocks [R, B] in the type of the queries: [R, KV, B * block_size, D]."""
    blocks = store.view(MOVED_AS.get(store.dtype, store.dtype))[tables].view(store.dtype)
    return blocks.to(dtype).flatten(1, 2).transpose(1, 2)


def attend_segments(
    query: torch.Tensor,
    store: torch.Tensor,
    batch: PackedBatch,
    *,
    scaling: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attend packed queries [T, H, D] to the stored keys, segment by segment: [T, H, D]."""
    out = query.new_empty(query.shape)
    for index, segment in enumerate(batch.segments):
        tables = batch.tables[segment.spans, : segment.width].long()
        part = _attend(
            query[segment.tokens].unflatten(0, (-1, segment.queries)).transpose(1, 2),
            read_blocks(store[0], tables, query.dtype),
            read_blocks(store[1], tables, query.dtype),
            batch.mask(index, window),
            scaling=scaling,
            softcap=softcap,
            sinks=sinks,
        )
        out[segment.tokens] = part.transpose(1, 2).flatten(0, 1)
    return out


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
    """Attention in single operations, for capped scores (Gemma 2) and sinks (gpt-oss)."""
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
