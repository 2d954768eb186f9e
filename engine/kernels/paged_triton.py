"""Attention over block tables as Triton kernels: split decode, tiled prefill.

Both fold the query heads that share a KV head into the rows of a matrix product, and walk the keys
once with a running softmax (Milakov and Gimelshein 2018; Dao et al. 2022), in powers of two and
float32. A head's sink, if any, is a score of nothing with which its softmax begins. Decode cuts a
row's keys into splits, which are combined after (Dao et al. 2023,
"flash decoding"). A layer's store is plain: [2, blocks, BLOCK, KV, SIZE], see KvLayout.
"""

from __future__ import annotations

import triton
import triton.language as tl

# A batch's tables are as wide as its longest context, and its prompts begin behind any number of
# streams. Kernels of their own for what 16 divides would be compiled while requests wait.
_for_any_batch = triton.jit(
    do_not_specialize=("table_stride",),
    do_not_specialize_on_alignment=("tables", "starts", "firsts"),
)


@triton.jit
def tanh(x):
    """Hyperbolic tangent from exp alone, which cannot overflow so."""
    small = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0.0, -size, size)


@triton.jit
def _scan(
    query, last, acc, norm, top, keys, value_offset, table, low, high, scale,
    STRIDE: tl.constexpr, SIZE: tl.constexpr, DIMS: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Let query rows [ROWS, DIMS] at positions `last` see keys `low` to `high`, TILE at a time.

    `acc` [ROWS, DIMS], `norm` and `top` [ROWS] are the running softmax. Unmasked, every row sees
    every key, and `high - low` is a multiple of TILE.
    """
    dims = tl.arange(0, DIMS)[None, :]
    for start in range(low, high, TILE):
        at = start + tl.arange(0, TILE)
        inside = (at < high) if MASKED else (at >= 0)
        block = tl.load(table + at // BLOCK, mask=inside, other=0) if MASKED else tl.load(
            table + at // BLOCK
        )  # fmt: skip
        place = keys + ((block.to(tl.int64) * BLOCK + at % BLOCK) * STRIDE)[:, None] + dims
        if MASKED or SIZE != DIMS:
            real = inside[:, None] & (dims < SIZE)
            key = tl.load(place, mask=real, other=0.0)
            value = tl.load(place + value_offset, mask=real, other=0.0)
        else:
            key = tl.load(place)
            value = tl.load(place + value_offset)
        # Numbers in FP8 are in every wider type, so these casts are exact.
        key, value = key.to(query.dtype), value.to(query.dtype)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if CAP > 0.0:
            score = tanh(score / CAP) * (CAP * 1.4426950408889634)
        if MASKED:
            seen = inside[None, :] & (at[None, :] <= last[:, None])
            if WINDOW > 0:
                seen &= at[None, :] > last[:, None] - WINDOW
            score = tl.where(seen, score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        # A row that has seen nothing yet: minus infinity less itself would be no number.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.exp2(score - base[:, None])
        shrink = tl.exp2(top - base)
        norm = norm * shrink + tl.sum(weight, 1)
        acc = acc * shrink[:, None]
        acc = tl.dot(weight.to(value.dtype), value, acc, input_precision="ieee")
        top = new_top
    return acc, norm, top


@triton.jit
def _begun(sinks, head, first, real, ROWS: tl.constexpr, SINKS: tl.constexpr):
    """(norm, top) of softmaxes [ROWS] that have seen their sinks where `first`, else nothing."""
    norm = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    if SINKS:
        sink = tl.load(sinks + head, mask=real, other=0.0).to(tl.float32) * 1.4426950408889634
        norm = tl.where(first, norm + 1.0, norm)
        top = tl.where(first, sink, top)
    return norm, top


@_for_any_batch
def decode(
    query, store, tables, firsts, sinks, out, partials, weights, value_offset, table_stride, scale,
    GROUP: tl.constexpr, ROWS: tl.constexpr, KV: tl.constexpr, SIZE: tl.constexpr,
    DIMS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
    WINDOW: tl.constexpr, CAP: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """One query per span; grid [KV, SPLITS, spans]. The first split always has a key.

    `query` and `out` are [spans, KV * GROUP, SIZE]. With several splits, `partials`
    [spans, KV * GROUP, SPLITS, SIZE] gets each split's own answer and `weights`
    [spans, KV * GROUP, SPLITS] the logarithm (base 2) of its sum, minus infinity for no keys.
    """
    head, split, span = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    last = tl.load(firsts + span)
    first_tile = tl.maximum(last - WINDOW + 1, 0) // TILE if WINDOW > 0 else 0
    per_split = tl.cdiv(tl.cdiv(last + 1, TILE) - first_tile, SPLITS)
    low = (first_tile + split * per_split) * TILE
    high = tl.minimum(low + per_split * TILE, last + 1)

    row = tl.arange(0, ROWS)
    dims = tl.arange(0, DIMS)
    heads = span.to(tl.int64) * (KV * GROUP) + head * GROUP + row
    real = (row < GROUP)[:, None] & (dims < SIZE)[None, :]
    rows = tl.load(query + heads[:, None] * SIZE + dims[None, :], mask=real, other=0.0)
    acc = tl.zeros([ROWS, DIMS], tl.float32)
    norm, top = _begun(sinks, head * GROUP + row, split == 0, row < GROUP, ROWS, SINKS)
    position = tl.zeros([ROWS], tl.int32) + last
    keys = store + head * SIZE
    table = tables + span.to(tl.int64) * table_stride
    full = low if WINDOW > 0 else tl.maximum(high // TILE * TILE, low)
    acc, norm, top = _scan(
        rows, position, acc, norm, top, keys, value_offset, table, low, full, scale,
        KV * SIZE, SIZE, DIMS, BLOCK, TILE, WINDOW, CAP, False,
    )  # fmt: skip
    acc, norm, top = _scan(
        rows, position, acc, norm, top, keys, value_offset, table, full, high, scale,
        KV * SIZE, SIZE, DIMS, BLOCK, TILE, WINDOW, CAP, True,
    )  # fmt: skip
    norm = tl.where(norm == 0.0, 1.0, norm)
    answer = acc / norm[:, None]
    if SPLITS == 1:
        tl.store(out + heads[:, None] * SIZE + dims[None, :], answer.to(out.dtype.element_ty), real)
    else:
        mine = heads * SPLITS + split
        tl.store(weights + mine, top + tl.log2(norm), row < GROUP)
        tl.store(partials + mine[:, None] * SIZE + dims[None, :], answer, real & (low < high))


@triton.jit
def combine(
    partials, weights, out,
    SIZE: tl.constexpr, DIMS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Add up the splits of each row; grid [spans * heads]. SPLITS is a power of two."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, DIMS)
    split = tl.arange(0, SPLITS)
    logs = tl.load(weights + row * SPLITS + split)
    weight = tl.exp2(logs - tl.max(logs, 0))
    real = (logs > float("-inf"))[:, None] & (dims < SIZE)[None, :]
    place = partials + (row * SPLITS + split)[:, None] * SIZE + dims[None, :]
    part = tl.load(place, mask=real, other=0.0)
    answer = tl.sum(part * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(out + row * SIZE + dims, answer.to(out.dtype.element_ty), dims < SIZE)


@_for_any_batch
def prefill(
    query, store, tables, starts, firsts, sinks, out, value_offset, table_stride, scale,
    GROUP: tl.constexpr, ROWS: tl.constexpr, KV: tl.constexpr, SIZE: tl.constexpr,
    DIMS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr, CAP: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Spans of many queries; grid [KV, tiles of the longest, spans], the last queries first.

    A program takes ROWS // GROUP queries with the GROUP heads of one KV head. `query` and `out`
    are [tokens, KV * GROUP, SIZE].
    """
    QUERIES: tl.constexpr = ROWS // GROUP
    head, span = tl.program_id(0), tl.program_id(2)
    begin = tl.load(starts + span)
    count = tl.load(starts + span + 1) - begin
    first = tl.load(firsts + span)
    tile = tl.cdiv(count, QUERIES) - 1 - tl.program_id(1)
    if tile < 0:
        return
    row = tl.arange(0, ROWS)
    dims = tl.arange(0, DIMS)
    number = tile * QUERIES + row // GROUP
    real = ((row < QUERIES * GROUP) & (number < count))[:, None] & (dims < SIZE)[None, :]
    heads = (begin + number).to(tl.int64) * (KV * GROUP) + head * GROUP + row % GROUP
    rows = tl.load(query + heads[:, None] * SIZE + dims[None, :], mask=real, other=0.0)
    acc = tl.zeros([ROWS, DIMS], tl.float32)
    norm, top = _begun(sinks, head * GROUP + row % GROUP, row >= 0, row >= 0, ROWS, SINKS)
    keys = store + head * SIZE
    table = tables + span.to(tl.int64) * table_stride

    leading = first + tile * QUERIES
    low = tl.maximum(leading - WINDOW + 1, 0) // TILE * TILE if WINDOW > 0 else 0
    full = low if WINDOW > 0 else (leading + 1) // TILE * TILE
    high = first + tl.minimum(count, (tile + 1) * QUERIES)
    acc, norm, top = _scan(
        rows, first + number, acc, norm, top, keys, value_offset, table, low, full, scale,
        KV * SIZE, SIZE, DIMS, BLOCK, TILE, WINDOW, CAP, False,
    )  # fmt: skip
    acc, norm, top = _scan(
        rows, first + number, acc, norm, top, keys, value_offset, table, full, high, scale,
        KV * SIZE, SIZE, DIMS, BLOCK, TILE, WINDOW, CAP, True,
    )  # fmt: skip
    answer = acc / tl.where(norm == 0.0, 1.0, norm)[:, None]
    tl.store(out + heads[:, None] * SIZE + dims[None, :], answer.to(out.dtype.element_ty), real)
