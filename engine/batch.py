"""From spans of sequences to the packed tensors of one step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from engine.attention import AttentionBatch, Segment
from engine.kv_cache import KvCache
from engine.sequence import Span


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One step's input. `order[i]` is the place in the caller's list of the i-th packed span.

    `tokens` and `positions` are [1, T]; `last` [spans that sample] indexes their final tokens.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    last: torch.Tensor
    attention: AttentionBatch
    order: tuple[int, ...]


def pack(spans: list[Span], cache: KvCache) -> PackedBatch:
    """Pack spans into one row: single tokens first, as one segment, then each longer chunk.

    Every span's sequence must hold blocks for all of its tokens up to the span's end.
    """
    singles = [index for index, span in enumerate(spans) if span.count == 1]
    chunks = [index for index, span in enumerate(spans) if span.count > 1]
    order = (*singles, *chunks)
    device = cache.device
    groups = [singles, *([index] for index in chunks)] if singles else [[i] for i in chunks]
    segments = [_segment([spans[i] for i in group], device, cache) for group in groups]
    tokens = [t for i in order for t in _tokens(spans[i])]
    slots = [slot for i in order for slot in _slots(spans[i], cache.layout.block_size)]
    last, end = [], 0
    for i in order:
        end += spans[i].count
        if spans[i].samples:
            last.append(end - 1)
    return PackedBatch(
        tokens=_long([tokens], device),
        positions=torch.cat([segment.positions.flatten() for segment in segments]).unsqueeze(0),
        last=_long(last, device),
        attention=AttentionBatch(cache, _long(slots, device), segments),
        order=order,
    )


def _segment(spans: list[Span], device: torch.device, cache: KvCache) -> Segment:
    needed = max(cache.layout.blocks_for(span.start + span.count) for span in spans)
    tables = [
        span.sequence.blocks[:needed] + [0] * (needed - len(span.sequence.blocks)) for span in spans
    ]
    positions = [list(range(span.start, span.start + span.count)) for span in spans]
    return Segment(
        rows=len(spans),
        queries=spans[0].count,
        tables=_long(tables, device),
        positions=_long(positions, device),
    )


def _tokens(span: Span) -> list[int]:
    return span.sequence.tokens[span.start : span.start + span.count]


def _slots(span: Span, block_size: int) -> Iterable[int]:
    blocks = span.sequence.blocks
    for position in range(span.start, span.start + span.count):
        yield blocks[position // block_size] * block_size + position % block_size


def _long(values: list[int] | list[list[int]], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.long, device=device)
