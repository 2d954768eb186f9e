"""Products of few rows by a large weight, as one Triton kernel that reads the weight once.

A program computes a tile of outputs for all rows, over its part of the inputs (split-K). Parts go
to a workspace. The program of a tile that arrives last adds the parts up in their order, so the
answer does not depend on which program that was. With GATED a program reads the tile of the gate
and the same tile of the values, so that weights keep their order.

The tile of outputs is the left side of the product: matrix units take 64 outputs at a time, while
rows may be 16. The order of additions depends on OUTPUTS, DEPTH and SPLITS, never on the number of
rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.paged_triton import tanh


@triton.jit
def _prefetch(weight, n, at, inputs, DEPTH: tl.constexpr, AHEAD: tl.constexpr):
    """Let the second-level cache fetch the first AHEAD tiles; a line has DEPTH numbers."""
    column = tl.minimum(at + tl.arange(0, AHEAD) * DEPTH, inputs - 1)
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
        "=r,l",
        [weight + n[:, None] * inputs + column[None, :]],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _tile(weight, n, k, outputs, inputs, EVEN: tl.constexpr):
    """Weights [OUTPUTS, DEPTH] of outputs `n` and inputs `k`; 0 outside."""
    place = weight + n[:, None] * inputs + k[None, :]
    if EVEN:
        return tl.load(place)
    return tl.load(place, mask=(n < outputs)[:, None] & (k < inputs)[None, :], other=0.0)


# The number of rows changes from step to step.
@triton.jit(do_not_specialize=("rows",))
def skinny(
    x, weight, bias, out, partials, arrivals, rows, outputs, inputs, per_split,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, SPLITS: tl.constexpr,
    AHEAD: tl.constexpr, EVEN: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr,
    GELU: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [rows, outputs] = x [rows, inputs] @ weight.T + bias; grid [tiles of outputs, SPLITS].

    `weight` is [outputs, inputs]. A split takes `per_split` tiles of DEPTH inputs. With several
    splits, `partials` [tiles, SPLITS, OUTPUTS, ROWS] holds their float32 sums, and `arrivals`
    [tiles] is zero before and after.

    With GATED, `weight` is [2 * outputs, inputs] and out = act(gate) * up; SPLITS must be 1.
    """
    tile, split = tl.program_id(0), tl.program_id(1)
    local = tl.arange(0, OUTPUTS)
    row = tl.arange(0, ROWS)
    n = (tile * OUTPUTS + local).to(tl.int64)
    low = split * per_split
    high = tl.minimum(low + per_split, tl.cdiv(inputs, DEPTH))
    upper = weight + outputs.to(tl.int64) * inputs if GATED else weight
    if PDL:
        # Weights do not come from the kernel before, so they need not wait for it.
        known = tl.minimum(n, outputs - 1)
        _prefetch(weight, known, low * DEPTH, inputs, DEPTH, AHEAD)
        if GATED:
            _prefetch(upper, known, low * DEPTH, inputs, DEPTH, AHEAD)
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()

    acc = tl.zeros([OUTPUTS, ROWS], tl.float32)
    above = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for step in range(low, high):
        k = step * DEPTH + tl.arange(0, DEPTH)
        place = x + row[:, None] * inputs + k[None, :]
        real = (row < rows)[:, None] if EVEN else (row < rows)[:, None] & (k < inputs)[None, :]
        part = tl.trans(tl.load(place, mask=real, other=0.0))
        these = _tile(weight, n, k, outputs, inputs, EVEN)
        acc = tl.dot(these, part, acc, input_precision="ieee")
        if GATED:
            those = _tile(upper, n, k, outputs, inputs, EVEN)
            above = tl.dot(those, part, above, input_precision="ieee")

    if SPLITS > 1:
        cells = local[:, None] * ROWS + row[None, :]
        mine = partials + tile.to(tl.int64) * (SPLITS * OUTPUTS * ROWS)
        tl.store(mine + split * (OUTPUTS * ROWS) + cells, acc)
        # The stores of all threads come before the one atomic, which makes them visible.
        tl.debug_barrier()
        if tl.atomic_add(arrivals + tile, 1, sem="acq_rel") == SPLITS - 1:
            total = tl.zeros([OUTPUTS, ROWS], tl.float32)
            for one in range(SPLITS):
                # Past the first-level cache, which may have an older sum.
                total += tl.load(mine + one * (OUTPUTS * ROWS) + cells, cache_modifier=".cg")
            _finish(total, above, bias, out, n, row, rows, outputs, BIASED, GATED, GELU)
            tl.store(arrivals + tile, 0)
    else:
        _finish(acc, above, bias, out, n, row, rows, outputs, BIASED, GATED, GELU)


@triton.jit
def _finish(
    acc, above, bias, out, n, row, rows, outputs,
    BIASED: tl.constexpr, GATED: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """Add the bias, gate, round once, and store [OUTPUTS, ROWS] to out [rows, outputs]."""
    inside = n < outputs
    if BIASED:
        acc += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)[:, None]
    if GATED:
        if BIASED:
            shift = tl.load(bias + outputs + n, mask=inside, other=0.0)
            above += shift.to(tl.float32)[:, None]
        if GELU:
            acc = 0.5 * acc * (1.0 + tanh(0.7978845608028654 * (acc + 0.044715 * acc * acc * acc)))
        else:
            acc = acc * tl.sigmoid(acc)
        acc *= above
    place = out + row[None, :].to(tl.int64) * outputs + n[:, None]
    tl.store(place, acc.to(out.dtype.element_ty), inside[:, None] & (row < rows)[None, :])
