"""Packs spans of sequences into the tensors of one step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.cpu.core_sharing import Beside
from engine.kv.block_table import BlockTable
from engine.kv.cache import KvCache
from engine.types.sequence import Sequence, Span

Array = npt.NDArray[Any]

_DTYPES = {"int64": torch.long, "int32": torch.int32}
# A bound: kernels take wider loads from pointers that are aligned to so many bytes.
_ALIGNED = 64


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
    size = cache.layout.block_size
    counts, begins, samples = np.array([(s.count, s.start, s.samples) for s in packed]).T
    ends = counts.cumsum()
    widths = -(-(begins + counts) // size)
    table = tables_of(packed, int(widths.max()), cache.scratch)
    row, position = np.arange(len(packed)), begins
    if ends[-1] > len(packed):
        row = row.repeat(counts)
        position = np.arange(ends[-1]) + (begins + counts - ends)[row]
    arrays = (
        np.array([token for span in packed for token in _tokens(span)], np.int64),
        position,
        table[row, position // size].astype(np.int64) * size + position % size,
        ends[samples > 0] - 1,
        np.array([0, *ends.tolist()], np.int32),
        begins.astype(np.int32),
        table,
    )
    here = cache.device.type == "cpu"
    there = [*map(torch.from_numpy, arrays)] if here else by_one_copy(arrays, cache.device)
    tokens, positions, slots, last, starts, firsts, tables = there
    return PackedBatch(
        cache=cache,
        tokens=tokens,
        positions=positions,
        slots=slots,
        last=last,
        starts=starts,
        firsts=firsts,
        tables=tables,
        segments=tuple(_segments(counts.tolist(), ends.tolist(), widths.tolist())),
        order=tuple(order),
        scored=any(s.sequence.scoring is not None and len(s.scored) > 0 for s in packed),
    )


def tables_of(spans: list[Span], width: int, padding: int) -> Array:
    """The leading `width` blocks of each span's sequence, int32 [spans, width]."""
    # Padding is read too, with weight 0: a NaN in another block, times 0, would still be a NaN.
    tables = np.full((len(spans), width), padding, np.int32)
    for row, span in enumerate(spans):
        blocks = blocks_of(span.sequence)[:width]
        tables[row, : len(blocks)] = blocks
    return tables


def blocks_of(sequence: Sequence) -> Array:
    """The block numbers of a sequence, int32 [blocks]; to be read alone."""
    if sequence.table is None:
        sequence.table = BlockTable()
    return sequence.table.of(sequence.blocks)


def by_one_copy(arrays: tuple[Array, ...], device: torch.device) -> list[torch.Tensor]:
    """The arrays as tensors on a device, brought there by one copy.

    Each begins at an address that is aligned as an allocation is: kernels are compiled for it.
    """
    ends = list(accumulate(-(-array.nbytes // _ALIGNED) * _ALIGNED for array in arrays))
    host = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    parts = list(zip(arrays, [0, *ends], strict=False))
    for array, at in parts:
        host.numpy()[at : at + array.nbytes] = array.reshape(-1).view(np.uint8)
    there = host.to(device, non_blocking=True)
    return [
        there[at : at + array.nbytes].view(_DTYPES[array.dtype.name]).view(array.shape)
        for array, at in parts
    ]


def _segments(counts: list[int], ends: list[int], widths: list[int]) -> Iterable[QuerySegment]:
    singles = sum(count == 1 for count in counts)
    if singles:
        yield QuerySegment(slice(0, singles), slice(0, singles), 1, max(widths[:singles]))
    for index in range(singles, len(counts)):
        rows = slice(ends[index] - counts[index], ends[index])
        yield QuerySegment(slice(index, index + 1), rows, counts[index], widths[index])


def _tokens(span: Span) -> list[int]:
    return span.sequence.tokens[span.start : span.start + span.count]
