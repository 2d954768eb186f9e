"""Paged attention through the Triton kernels: their tiles, splits and launches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.model.packed_batch import PackedBatch

Tensor = torch.Tensor

# Tuned: the keys of a tile fill so many bytes, which fit from Ampere on.
_TILE_BYTES = 32768
# A bound: a row's keys are cut into at most so many parts.
_MOST_SPLITS = 64
# Tuned: programs in flight per processor; on an H200 more cost time.
_PROGRAMS_PER_PROCESSOR = 2


class PagedAttention(Protocol):
    """Attention of packed queries over keys and values that are in their blocks already."""

    name: str

    def __call__(
        self,
        query: Tensor,
        store: Tensor,
        batch: PackedBatch,
        *,
        scaling: float,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """[tokens, heads, size] over a layer's store (see KvCache) to [tokens, heads, size].

        `sinks` are scores [heads] of nothing.
        """
        ...


@dataclass(frozen=True, slots=True)
class Tiles:
    """A launch: query rows and keys at a time, warps, and pipeline stages of the loads."""

    rows: int
    keys: int
    warps: int
    stages: int


def decode_tiles(group: int, size: int, itemsize: int) -> Tiles:
    """Tiles of the heads of a group by keys that fill 32 KiB; 74 KB in use."""
    rows = max(16, power_of_two(group))
    keys = max(16, min(128, _TILE_BYTES // (power_of_two(size) * itemsize)))
    # Loads that go through a table pass through the pipeline in two steps.
    return Tiles(rows, keys, warps=4, stages=3)


def prefill_tiles(queries: int, group: int, size: int, itemsize: int) -> Tiles:
    """Tiles large enough for tensor cores; smaller for float32, and for few queries."""
    dims = power_of_two(size)
    few = max(16, power_of_two(queries * group), power_of_two(group))
    if itemsize == 4:
        return Tiles(min(32, few) if group <= 32 else few, 32 if dims <= 128 else 16, 4, 2)
    rows = min(128, few)
    if dims <= 128:
        return Tiles(rows, 64, warps=4, stages=3)
    return Tiles(rows, 32, warps=8 if rows == 128 else 4, stages=2)


def splits(rows: int, kv_heads: int, processors: int, keys: int, tile: int) -> int:
    """The number of parts of a row's keys, a power of two, from shapes alone.

    `keys` is the most that a row can have, so a captured graph is right for every context.
    """
    wanted = _PROGRAMS_PER_PROCESSOR * processors / (rows * kv_heads)
    most = min(_MOST_SPLITS, power_of_two(-(-keys // tile)))
    # Two at least: among short rows there may be a long one.
    return min(most, 1 << max(1, round(math.log2(wanted))))


def power_of_two(number: int) -> int:
    """The next power of two, from 1 on."""
    return 1 << max(0, number - 1).bit_length()


class TritonAttention:
    """See PagedAttention: single queries through `decode`, longer spans through `prefill`.

    `decoding` and `prefilling` replace the chosen tiles, and `parts` the splits, for measurements.
    """

    name = "Triton attention"

    def __init__(
        self,
        processors: int,
        *,
        decoding: Tiles | None = None,
        prefilling: Tiles | None = None,
        parts: int | None = None,
    ) -> None:
        from engine.kernels import paged_triton

        self._kernels = paged_triton
        self._processors = processors
        self._decoding = decoding
        self._prefilling = prefilling
        self._parts = parts

    def __call__(
        self,
        query: Tensor,
        store: Tensor,
        batch: PackedBatch,
        *,
        scaling: float,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See PagedAttention."""
        out = torch.empty_like(query)
        cap = softcap or 0.0
        scale = scaling if cap else scaling * math.log2(math.e)
        shape = _shape(query, store, window or 0, cap) | {"SINKS": sinks is not None}
        # Without sinks the pointer is not read.
        sinks = query if sinks is None else sinks
        single = batch.segments[0].spans.stop if batch.segments[0].queries == 1 else 0
        if single:
            self._decode(query, store, batch, single, sinks, scale, shape, out)
        if single < len(batch.tables):
            longest = max(s.queries for s in batch.segments)
            self._prefill(query, store, batch, single, longest, sinks, scale, shape, out)
        return out

    def _decode(
        self,
        query: Tensor,
        store: Tensor,
        batch: PackedBatch,
        spans: int,
        sinks: Tensor,
        scale: float,
        shape: dict[str, int | float],
        out: Tensor,
    ) -> None:
        heads, size = query.shape[1:]
        kv_heads = int(shape["KV"])
        tiles = self._decoding or decode_tiles(heads // kv_heads, size, query.element_size())
        reach = batch.tables.shape[1] * int(shape["BLOCK"])
        parts = self._parts or splits(spans, kv_heads, self._processors, reach, tiles.keys)
        cut = (spans, heads, parts) if parts > 1 else (1, 1, 1)
        partials = query.new_empty((*cut, size), dtype=torch.float32)
        weights = query.new_empty(cut, dtype=torch.float32)
        self._kernels.decode[(kv_heads, parts, spans)](
            query,
            store,
            batch.tables,
            batch.firsts,
            sinks,
            out,
            partials,
            weights,
            store.stride(0),
            batch.tables.stride(0),
            scale,
            **shape,
            ROWS=tiles.rows,
            TILE=tiles.keys,
            SPLITS=parts,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
        if parts > 1:
            dims = int(shape["DIMS"])
            self._kernels.combine[(spans * heads,)](
                partials, weights, out, SIZE=size, DIMS=dims, SPLITS=parts, num_warps=4
            )

    def _prefill(
        self,
        query: Tensor,
        store: Tensor,
        batch: PackedBatch,
        single: int,
        longest: int,
        sinks: Tensor,
        scale: float,
        shape: dict[str, int | float],
        out: Tensor,
    ) -> None:
        group, size = int(shape["GROUP"]), query.shape[2]
        tiles = self._prefilling or prefill_tiles(longest, group, size, query.element_size())
        per_tile = tiles.rows // group
        tables = batch.tables[single:]
        self._kernels.prefill[(int(shape["KV"]), -(-longest // per_tile), len(tables))](
            query,
            store,
            tables,
            batch.starts[single:],
            batch.firsts[single:],
            sinks,
            out,
            store.stride(0),
            tables.stride(0),
            scale,
            **shape,
            ROWS=tiles.rows,
            TILE=tiles.keys,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )


def _shape(query: Tensor, store: Tensor, window: int, cap: float) -> dict[str, int | float]:
    """The constants that the kernels are compiled for, by name."""
    heads, size = query.shape[1:]
    block, kv_heads = store.shape[2:4]
    return {
        "GROUP": heads // kv_heads,
        "KV": kv_heads,
        "SIZE": size,
        "DIMS": max(16, power_of_two(size)),
        "BLOCK": block,
        "WINDOW": window,
        "CAP": cap,
    }
