"""From logits to tokens as Triton kernels: edits and the draw; filters_triton.py has the filters.

A row of scores is cut into tiles of TILE tokens, and a grid [rows, tiles] leaves the numbers of
each tile. TILES, a power of two, is at least their count COUNT. The kernel behind it adds the tiles
up in their order, so a row has the same numbers in any batch. Weights are exp((score - best) /
temperature) in float64, as in engine/sampling/filters.py.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def weight_of(score, best, temperature):
    """The probability of a score but for the divisor of its row, float64; the best weighs 1."""
    return tl.exp((score.to(tl.float64) - best.to(tl.float64)) / temperature)


@triton.jit
def best_of(values, row, COUNT: tl.constexpr, TILES: tl.constexpr):
    """The best score of a row; NaN where any is."""
    tile = tl.arange(0, TILES)
    found = tl.load(values + row * TILES + tile, mask=tile < COUNT, other=float("-inf"))
    wrong = tl.sum((found != found).to(tl.int32), 0)
    best = tl.max(tl.where(found != found, float("-inf"), found), 0)
    return tl.where(wrong > 0, float("nan"), best)


@triton.jit
def _first(reached, weight, at, END: tl.constexpr):
    """The first place that is reached and weighs; the last that weighs where rounding left none."""
    first = tl.min(tl.where(reached & (weight > 0.0), at, END), 0)
    last = tl.max(tl.where(weight > 0.0, at, 0), 0)
    return tl.where(first < END, first, last)


@triton.jit
def edit(
    logits, stride, scores, counts, banned, slots, mask_rows, repetition, presence, frequency,
    VOCABULARY: tl.constexpr, BYTES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Penalties and masks; grid [rows, tiles]. `scores` is float32 [rows, VOCABULARY].

    `counts` [slots, VOCABULARY] has twice the occurrences in the output, plus 1 for a token of the
    prompt. `banned` [masks, BYTES] has a bit for each token. A negative slot or mask means none.
    """
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * TILE + tl.arange(0, TILE)
    real = token < VOCABULARY
    x = tl.load(logits + row * stride + token, mask=real, other=float("-inf")).to(tl.float32)
    slot = tl.load(slots + row).to(tl.int64)
    if slot >= 0:
        count = tl.load(counts + slot * VOCABULARY + token, mask=real, other=0)
        factor = tl.load(repetition + row)
        x = tl.where(count > 0, tl.where(x < 0.0, x * factor, tl.div_rn(x, factor)), x)
        output = count >> 1
        less = tl.load(presence + row) + tl.load(frequency + row) * output.to(tl.float32)
        x = tl.where(output > 0, x - less, x)
    mask_row = tl.load(mask_rows + row).to(tl.int64)
    if mask_row >= 0:
        bits = tl.load(banned + mask_row * BYTES + token // 8, mask=real, other=0).to(tl.int32)
        x = tl.where(((bits >> (token % 8)) & 1) != 0, float("-inf"), x)
    tl.store(scores + row * VOCABULARY + token, x, real)


@triton.jit
def add_bias(
    scores, starts, lengths, tokens, values, VOCABULARY: tl.constexpr, MOST: tl.constexpr
):  # fmt: skip
    """Add each row's biases, from its start among `tokens` and `values` on; grid [rows]."""
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row)
    if length == 0:
        return
    entry = tl.arange(0, MOST)
    real = entry < length
    entry += tl.load(starts + row)
    place = scores + row * VOCABULARY + tl.load(tokens + entry, mask=real, other=0)
    value = tl.load(values + entry, mask=real, other=0.0)
    tl.store(place, tl.load(place, mask=real, other=0.0) + value, real)


@triton.jit
def best(
    scores, stride, values, tokens,
    VOCABULARY: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """The best score of each tile, NaN where any is, and its first token; grid [rows, tiles]."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * TILE + tl.arange(0, TILE)
    real = token < VOCABULARY
    x = tl.load(scores + row * stride + token, mask=real, other=float("-inf")).to(tl.float32)
    wrong = tl.sum((x != x).to(tl.int32), 0)
    top = tl.max(tl.where(x != x, float("-inf"), x), 0)
    place = row * TILES + tl.program_id(1)
    tl.store(values + place, tl.where(wrong > 0, float("nan"), top))
    tl.store(tokens + place, tl.min(tl.where(real & (x == top), token, VOCABULARY), 0))


@triton.jit
def weigh(
    scores, stride, values, temperatures, floors, sums,
    FILTERED: tl.constexpr, VOCABULARY: tl.constexpr, TILE: tl.constexpr, COUNT: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """The weight of each tile's kept tokens; grid [rows, tiles]."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures + row)
    if temperature == 0.0:
        return
    token = tile * TILE + tl.arange(0, TILE)
    real = token < VOCABULARY
    x = tl.load(scores + row * stride + token, mask=real, other=float("-inf")).to(tl.float32)
    kept = real
    if FILTERED:
        kept = real & (x >= tl.load(floors + row))
    top = best_of(values, row, COUNT, TILES)
    weight = tl.where(kept, weight_of(x, top, temperature), 0.0)
    tl.store(sums + row * TILES + tile, tl.sum(weight, 0))


@triton.jit
def pick(
    scores, stride, values, best_tokens, temperatures, noise, floors, sums, slots, counts, tokens,
    DRAWS: tl.constexpr, FILTERED: tl.constexpr, COUNTED: tl.constexpr,
    VOCABULARY: tl.constexpr, TILE: tl.constexpr, COUNT: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """The token of each row, -1 without a distribution; grid [rows].

    At temperature 0 it is the best one, else the one at `noise` in the running sum of weights in
    the order of the vocabulary. Where COUNTED it is added to the counts of its slot.
    """
    row = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, TILES)
    there = row * TILES + tile
    top = best_of(values, row, COUNT, TILES)
    found = tl.load(values + there, mask=tile < COUNT, other=float("-inf"))
    first = tl.load(best_tokens + there, mask=tile < COUNT, other=VOCABULARY)
    token = tl.min(tl.where(found == top, first, VOCABULARY), 0)
    if DRAWS:
        temperature = tl.load(temperatures + row)
        if temperature > 0.0:
            part = tl.load(sums + there, mask=tile < COUNT, other=0.0)
            edges = tl.cumsum(part, 0)
            whole = tl.max(edges, 0)
            # The number just below: the draw is within the distribution, however it rounds.
            below = (whole.to(tl.int64, bitcast=True) - 1).to(tl.float64, bitcast=True)
            target = tl.minimum(tl.load(noise + row) * whole, below)
            mine = _first(edges > target, part, tile, TILES)
            before = tl.sum(tl.where(tile < mine, part, 0.0), 0)
            at = tl.arange(0, TILE)
            real = mine * TILE + at < VOCABULARY
            place = scores + row * stride + mine * TILE + at
            x = tl.load(place, mask=real, other=float("-inf")).to(tl.float32)
            if FILTERED:
                real = real & (x >= tl.load(floors + row))
            weight = tl.where(real, weight_of(x, top, temperature), 0.0)
            within = _first(before + tl.cumsum(weight, 0) > target, weight, at, TILE)
            token = mine * TILE + within
    sound = (top > float("-inf")) & (top < float("inf"))
    tl.store(tokens + row, tl.where(sound, token, -1).to(tl.int64))
    if COUNTED:
        slot = tl.load(slots + row).to(tl.int64)
        place = counts + slot * VOCABULARY + token
        counted = sound & (slot >= 0)
        tl.store(place, tl.load(place, mask=counted, other=0) + 2, counted)
