"""Packs spans of sequences into the tensors of one step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from engine.cpu.core_sharing import Beside
from engine.kv.cache import KvCache
from engine.types.sequence import Span


@dataclass(frozen=True, slots=True)
class QuerySegment:
    """Consecutive spans of equally many queries, which attend together.

    `spans` and `tokens` are their ranges in the batch; `width` is how many blocks they reach.
    """

    spans: slice
    tokens: slice
    queries: int
    width: int


@dataclass(slots=True)
class PackedBatch:
    """The input of a step.

    - `order`: `order[i]` is the index in the caller's list of the i-th packed span.
    - `tokens`, `positions`, `slots`: per token, [T]; a token's key and value go to its slot
      (block * block_size + offset).
    - `firsts`: per span, [S] int32, the position of its first query.
    - `starts`: [S + 1] int32, where each span's rows begin among the tokens.
    - `tables`: [S, blocks] int32, block tables.
    - `last`: indexes of the final tokens of the spans that sample.
    - `scored`: whether logits of other tokens are requested, too.
    - `halted`: [1] int32 on the CPU, set by another thread to halt the step. A halted step may
      leave any content in its blocks.
    - `beside`: the other engines that compute on the same cores.
    """

    cache: KvCache
    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    last: torch.Tensor
    starts: torch.Tensor
    firsts: torch.Tensor
    tables: torch.Tensor
    segments: tuple[QuerySegment, ...]
    order: tuple[int, ...]
    scored: bool = False
    halted: torch.Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.int32))
    beside: Callable[[], Beside] = Beside
    _masks: dict[tuple[int, int | None], torch.Tensor] = field(default_factory=dict)

    def mask(self, index: int, window: int | None) -> torch.Tensor:
        """The keys that the queries of a segment may see: bool [rows, queries, keys]."""
        key = (index, window)
        if key not in self._masks:
            segment = self.segments[index]
            keys = segment.width * self.cache.layout.block_size
            column = torch.arange(keys, device=self.positions.device)
            row = self.positions[segment.tokens].view(-1, segment.queries, 1)
            seen = column <= row
            if window is not None:
                seen &= column > row - window
            self._masks[key] = seen
        return self._masks[key]


def pack(spans: list[Span], cache: KvCache) -> PackedBatch:
    """Pack spans into one row: single tokens first, as one segment, then each longer chunk.

    Every span's sequence must have blocks for all of its tokens up to the span's end.
    """
    order = sorted(range(len(spans)), key=lambda index: spans[index].count > 1)
    packed = [spans[index] for index in order]
    starts = [0]
    for span in packed:
        starts.append(starts[-1] + span.count)
    widths = [cache.layout.blocks_for(span.start + span.count) for span in packed]
    device = cache.device
    return PackedBatch(
        cache=cache,
        tokens=_tensor([token for span in packed for token in _tokens(span)], device),
        positions=_tensor([p for span in packed for p in _positions(span)], device),
        slots=_tensor([s for span in packed for s in _slots(span, cache)], device),
        last=_tensor([e - 1 for s, e in zip(packed, starts[1:], strict=True) if s.samples], device),
        starts=_tensor(starts, device, torch.int32),
        firsts=_tensor([span.start for span in packed], device, torch.int32),
        tables=_tensor(_tables(packed, max(widths), cache.scratch), device, torch.int32),
        segments=tuple(_segments(packed, starts, widths)),
        order=tuple(order),
        scored=any(len(span.scored) > 0 for span in spans),
    )


def _segments(packed: list[Span], starts: list[int], widths: list[int]) -> Iterable[QuerySegment]:
    singles = sum(span.count == 1 for span in packed)
    if singles:
        yield QuerySegment(slice(0, singles), slice(0, singles), 1, max(widths[:singles]))
    for index in range(singles, len(packed)):
        rows = slice(starts[index], starts[index + 1])
        yield QuerySegment(slice(index, index + 1), rows, packed[index].count, widths[index])


def _tables(packed: list[Span], width: int, padding: int) -> list[list[int]]:
    # Padding is read too, with weight 0: a NaN in another block, times 0, would still be a NaN.
    rows = (span.sequence.blocks[:width] for span in packed)
    return [[*row, *([padding] * (width - len(row)))] for row in rows]


def _tokens(span: Span) -> list[int]:
    return span.sequence.tokens[span.start : span.start + span.count]


def _positions(span: Span) -> range:
    return range(span.start, span.start + span.count)


def _slots(span: Span, cache: KvCache) -> Iterable[int]:
    blocks, size = span.sequence.blocks, cache.layout.block_size
    return (blocks[p // size] * size + p % size for p in _positions(span))


def _tensor(
    values: list[int] | list[list[int]], device: torch.device, dtype: torch.dtype = torch.long
) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=device)
