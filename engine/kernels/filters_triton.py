"""The lowest score that top-k, top-p and min-p keep, as Triton kernels.

Top-k and top-p are searches for the highest score whose tokens, with all above it, are k tokens or
reach the share p. A search is over the bits of the scores, four bits a step, as in a radix select:
the integers that `_key` makes of floats are in the order of the floats. Rows are cut into tiles as
in sampling_triton.py, and equals of the last kept token stay, as in engine/sampling/filters.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.sampling_triton import best_of, weight_of

# A step of a search is an argument, not a kernel of its own.
_for_any_step = triton.jit(do_not_specialize=("step",))


@triton.jit
def _key(score):
    """int32 in the order of float32; both zeros are equal."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _score(key):
    """The float32 of a key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _narrowed(
    prefixes, bases, partials, target, row, step,
    ROWS: tl.constexpr, COUNT: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """The search's prefix, and what the scores above its range sum to, before a step."""
    before = tl.maximum(step - 1, 0)
    later = step > 0
    prefix = tl.load(prefixes + before * ROWS + row, mask=later, other=0)
    base = tl.load(bases + before * ROWS + row, mask=later, other=0.0)
    tile = tl.arange(0, TILES)[:, None]
    digit = tl.arange(0, 16)
    place = ((before % 2) * ROWS + row) * TILES + tile
    inside = (tile < COUNT) & later & (digit[None, :] > 0)
    part = tl.load(partials + place * 16 + digit[None, :], mask=inside, other=0.0)
    reached = tl.sum(part, 0) + base
    found = tl.max(tl.where((reached >= target) & later & (digit > 0), digit, 0), 0)
    above = tl.sum(tl.where(digit == found + 1, reached, 0.0), 0)
    base = tl.where(found == 15, base, tl.where(later, above, 0.0))
    shift = tl.maximum(32 - 4 * step, 0)
    return prefix + tl.where(later, found.to(tl.int64) << (shift % 32).to(tl.int64), 0), base


@_for_any_step
def narrow(
    scores, values, temperatures, top_k, top_p, targets, prefixes, bases, partials, step,
    BY_COUNT: tl.constexpr, ROWS: tl.constexpr, VOCABULARY: tl.constexpr, TILE: tl.constexpr,
    COUNT: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Step 0 to 7 of the search by count or by weight; grid [rows, tiles].

    `prefixes` and `bases` are [9, ROWS]: the state before each step. `partials`
    [2, ROWS, TILES, 16] gets the sums of the tile's scores in range from each of 16 digits on.
    """
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if BY_COUNT:
        target = tl.load(top_k + row).to(tl.float64)
        if target == 0.0:
            return
    else:
        target = tl.load(targets + row)
        if tl.load(top_p + row) >= 1.0:
            return
    prefix, base = _narrowed(prefixes, bases, partials, target, row, step, ROWS, COUNT, TILES)
    if tile == 0:
        tl.store(prefixes + step * ROWS + row, prefix)
        tl.store(bases + step * ROWS + row, base)
    width = tl.full([], 1, tl.int64) << (28 - 4 * step).to(tl.int64)
    low = prefix - 2147483648
    token = tile * TILE + tl.arange(0, TILE)
    real = token < VOCABULARY
    x = tl.load(scores + row * VOCABULARY + token, mask=real, other=float("-inf"))
    key = _key(x)
    inside = real & (key >= low.to(tl.int32)) & (key <= (low + 16 * width - 1).to(tl.int32))
    place = partials + (((step % 2) * ROWS + row) * TILES + tile) * 16
    if tl.sum(inside.to(tl.int32), 0) == 0:
        tl.store(place + tl.arange(0, 16), tl.zeros([16], tl.float64))
        return
    if BY_COUNT:
        weight = inside.to(tl.float64)
    else:
        top = best_of(values, row, COUNT, TILES)
        weight = tl.where(inside, weight_of(x, top, tl.load(temperatures + row)), 0.0)
    for digit in tl.static_range(1, 16):
        least = (low + digit * width).to(tl.int32)
        tl.store(place + digit, tl.sum(tl.where(key >= least, weight, 0.0), 0))


@triton.jit
def total(
    scores, values, temperatures, top_k, top_p, prefixes, bases, partials, sums, numbers,
    ROWS: tl.constexpr, VOCABULARY: tl.constexpr, TILE: tl.constexpr, COUNT: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """End the search by count; weights and number of the scores above it; grid [rows, tiles]."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = tile * TILE + tl.arange(0, TILE)
    real = token < VOCABULARY
    x = tl.load(scores + row * VOCABULARY + token, mask=real, other=float("-inf"))
    above = real
    k = tl.load(top_k + row)
    if k > 0:
        step = tl.full([], 8, tl.int32)
        target = k.to(tl.float64)
        prefix, _ = _narrowed(prefixes, bases, partials, target, row, step, ROWS, COUNT, TILES)
        above = real & (_key(x) > (prefix - 2147483648).to(tl.int32))
        if tile == 0:
            tl.store(prefixes + 8 * ROWS + row, prefix)
    if tl.load(top_p + row) < 1.0:
        top = best_of(values, row, COUNT, TILES)
        weight = tl.where(above, weight_of(x, top, tl.load(temperatures + row)), 0.0)
        tl.store(sums + row * TILES + tile, tl.sum(weight, 0))
        tl.store(numbers + row * TILES + tile, tl.sum(above.to(tl.int32), 0))


@triton.jit
def aim(
    values, temperatures, top_k, top_p, prefixes, sums, numbers, targets,
    ROWS: tl.constexpr, COUNT: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """The weight that top-p must reach: its share of what top-k left; grid [rows]."""
    row = tl.program_id(0).to(tl.int64)
    share = tl.load(top_p + row)
    if share >= 1.0:
        return
    tile = tl.arange(0, TILES)
    whole = tl.sum(tl.load(sums + row * TILES + tile, mask=tile < COUNT, other=0.0), 0)
    k = tl.load(top_k + row)
    if k > 0:
        above = tl.sum(tl.load(numbers + row * TILES + tile, mask=tile < COUNT, other=0), 0)
        key = (tl.load(prefixes + 8 * ROWS + row) - 2147483648).to(tl.int32)
        top = best_of(values, row, COUNT, TILES)
        last = weight_of(_score(key), top, tl.load(temperatures + row))
        whole += (k - above).to(tl.float64) * last
    tl.store(targets + row, share * whole)


@triton.jit
def settle(
    values, top_k, top_p, min_p, targets, by_count, prefixes, bases, partials, floors,
    ROWS: tl.constexpr, COUNT: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """End the search by weight; the lowest score that all filters keep; grid [rows].

    `by_count` are the other search's prefixes, and `min_p` is log(min-p) * temperature.
    """
    row = tl.program_id(0).to(tl.int64)
    top = best_of(values, row, COUNT, TILES)
    floor = top.to(tl.float64) + tl.load(min_p + row)
    if tl.load(top_k + row) > 0:
        key = (tl.load(by_count + 8 * ROWS + row) - 2147483648).to(tl.int32)
        floor = tl.maximum(floor, _score(key).to(tl.float64))
    if tl.load(top_p + row) < 1.0:
        step = tl.full([], 8, tl.int32)
        target = tl.load(targets + row)
        prefix, _ = _narrowed(prefixes, bases, partials, target, row, step, ROWS, COUNT, TILES)
        key = tl.minimum((prefix - 2147483648).to(tl.int32), _key(top))
        floor = tl.maximum(floor, _score(key).to(tl.float64))
    tl.store(floors + row, floor.to(tl.float32))
