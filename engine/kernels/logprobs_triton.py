"""Log-probabilities of the chosen and the likeliest tokens as Triton kernels.

Rows are cut into tiles as in engine/kernels/sampling_triton.py.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _take_best(x, token, left, END: tl.constexpr):
    """The best score that is left, the lowest id among equals; and what is left behind it."""
    top = tl.max(tl.where(left, x, float("-inf")), 0)
    found = tl.min(tl.where(left & (x == top), token, END), 0)
    return top, found, left & (token != found)


@triton.jit
def likeliest(
    logits, stride, wanted, tops, sums, values, ids,
    VOCABULARY: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Of each tile: its best logit, sum of exponentials, and likeliest tokens; grid [rows, tiles].

    `wanted` has each row's number of them, -1 for a row without log-probabilities. `values` and
    `ids` are [rows, TILES, MOST].
    """
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    count = tl.load(wanted + row)
    if count < 0:
        return
    token = tile * TILE + tl.arange(0, TILE)
    left = token < VOCABULARY
    x = tl.load(logits + row * stride + token, mask=left, other=float("-inf")).to(tl.float32)
    top = tl.max(x, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    place = row * TILES + tile
    tl.store(tops + place, top)
    tl.store(sums + place, tl.sum(tl.exp(x - base), 0))
    for index in range(0, count):
        value, found, left = _take_best(x, token, left, VOCABULARY)
        tl.store(values + place * MOST + index, value)
        tl.store(ids + place * MOST + index, found)


@triton.jit
def logprobs(
    logits, stride, wanted, tokens, tops, sums, values, ids, chosen, best_values, best_ids,
    VOCABULARY: tl.constexpr, COUNT: tl.constexpr, TILES: tl.constexpr, MOST: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Log-probabilities of each row's token and of its likeliest tokens; grid [rows].

    `best_values` and `best_ids` are [rows, WIDTH].
    """
    row = tl.program_id(0).to(tl.int64)
    count = tl.load(wanted + row)
    if count < 0:
        return
    tile = tl.arange(0, TILES)
    top = tl.load(tops + row * TILES + tile, mask=tile < COUNT, other=float("-inf"))
    part = tl.load(sums + row * TILES + tile, mask=tile < COUNT, other=0.0)
    best = tl.max(top, 0)
    log = tl.log(tl.sum(tl.where(part == 0.0, 0.0, part * tl.exp(top - best)), 0))
    token = tl.maximum(tl.load(tokens + row), 0)
    own = tl.load(logits + row * stride + token).to(tl.float32)
    tl.store(chosen + row, own - best - log)
    entry = tl.arange(0, TILES * MOST)
    left = (entry // MOST < COUNT) & (entry % MOST < count)
    x = tl.load(values + row * TILES * MOST + entry, mask=left, other=float("-inf"))
    candidate = tl.load(ids + row * TILES * MOST + entry, mask=left, other=VOCABULARY)
    left = left & (candidate < VOCABULARY)
    for index in range(0, count):
        value, found, left = _take_best(x, candidate, left, VOCABULARY)
        tl.store(best_values + row * WIDTH + index, value - best - log)
        tl.store(best_ids + row * WIDTH + index, found.to(tl.int64))
