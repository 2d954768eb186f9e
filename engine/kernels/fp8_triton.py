"""FP8 (E4M3) as Triton kernels: rounding of inputs, and products with scales by blocks.

The product multiplies FP8 numbers and adds what each stretch of columns gives, times both scales,
in float32 (DeepSeek-V3's technical report, 2024, section 3.3.2). UNVERIFIED on a GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def saturated(x):
    """Numbers within E4M3's range; NaNs stay, as both comparisons are false."""
    x = tl.where(x > 448.0, 448.0, x)
    return tl.where(x < -448.0, -448.0, x)


@triton.jit
def quantise(
    x, fixed, values, scales, largest, least,
    IN: tl.constexpr, WIDTH: tl.constexpr, DIMS: tl.constexpr, FIXED: tl.constexpr,
):  # fmt: skip
    """Grid [rows, groups] over x [rows, IN]: WIDTH numbers a group in FP8, and their scale."""
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dims = tl.arange(0, DIMS)
    place = group * WIDTH + dims
    real = (dims < WIDTH) & (place < IN)
    wide = tl.load(x + row * IN + place, mask=real, other=0.0).to(tl.float32)
    scale = tl.load(fixed) if FIXED else tl.maximum(tl.max(tl.abs(wide), 0) / largest, least)
    tl.store(scales + row * tl.num_programs(1) + group, scale)
    tl.store(values + row * IN + place, saturated(wide / scale).to(values.dtype.element_ty), real)


@triton.jit(do_not_specialize=("rows",))
def block_product(
    x, weight, x_scales, scales, bias, out, rows,
    OUT: tl.constexpr, IN: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """Grid [rows / TALL, OUT / WIDE]: out [rows, OUT] of x [rows, IN] by weight [OUT, IN].

    `x_scales` is [rows, IN / WIDTH]; `scales` is [OUT / HEIGHT, IN / WIDTH].
    """
    row = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    groups: tl.constexpr = (IN + WIDTH - 1) // WIDTH
    acc = tl.zeros((TALL, WIDE), tl.float32)
    for group in range(0, groups):
        dims = group * WIDTH + tl.arange(0, WIDTH)
        left = tl.load(
            x + row[:, None] * IN + dims[None, :],
            mask=(row[:, None] < rows) & (dims[None, :] < IN), other=0.0,
        )  # fmt: skip
        right = tl.load(
            weight + column[:, None].to(tl.int64) * IN + dims[None, :],
            mask=(column[:, None] < OUT) & (dims[None, :] < IN), other=0.0,
        )  # fmt: skip
        by_row = tl.load(x_scales + row * groups + group, mask=row < rows, other=0.0)
        by_column = tl.load(
            scales + column // HEIGHT * groups + group, mask=column < OUT, other=0.0
        )
        acc += tl.dot(left, tl.trans(right)) * by_row[:, None] * by_column[None, :]
    if BIASED:
        acc += tl.load(bias + column, mask=column < OUT, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out + row[:, None] * OUT + column[None, :], acc.to(out.dtype.element_ty),
        (row[:, None] < rows) & (column[None, :] < OUT),
    )  # fmt: skip
