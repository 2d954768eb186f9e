"""Products with FP8 weights that stay FP8 in memory. UNVERIFIED on a GPU.

Scales by rows: torch's scaled product, with inputs that are quantised row by row. Scales by blocks:
a Triton kernel, because torch has that product for Hopper alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Protocol

import torch

from engine.errors import UnsupportedModel
from engine.fp8.product_check import check_product
from engine.fp8.values import E4M3, LARGEST, LEAST_SCALE, Scales, plain_product, quantised

Tensor = torch.Tensor
Quantise = Callable[[Tensor, int, Tensor | None], tuple[Tensor, Tensor]]

# A rule of torch's scaled product: rows and columns of a weight are multiples of it.
_MULTIPLE = 16
# A bound of the kernel that quantises.
_MOST_WIDTH = 65536


class Fp8Product(Protocol):
    """A product with one weight: [rows, in] to [rows, out]."""

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply."""
        ...


class Fp8Products:
    """Makes the products of weights; the first one of each kind is checked.

    Without Triton, scales by blocks bring the weight back each time.
    """

    def __init__(self, *, by_triton: bool) -> None:
        self._by_triton = by_triton
        self._checked: set[Hashable] = set()

    def of(
        self, weight: Tensor, scales: Scales, bias: Tensor | None, dtype: torch.dtype
    ) -> Fp8Product:
        """The product of a weight, for inputs of a type; UnsupportedModel where it is wrong."""
        product = self._made(weight, scales, bias)
        described = (scales.height, scales.width, scales.fixed is None, bias is None)
        kind = (weight.shape, *described, dtype, weight.device)
        if kind not in self._checked:
            with torch.inference_mode():
                check_product(product, weight, scales, bias, dtype)
            self._checked.add(kind)
        return product

    def _made(self, weight: Tensor, scales: Scales, bias: Tensor | None) -> Fp8Product:
        if scales.is_by_rows:
            quantise = quantised_by_triton if self._by_triton else quantised
            return RowScaledProduct(weight, scales, bias, quantise)
        if self._by_triton:
            return BlockScaledProduct(weight, scales, bias)
        return partial(plain_product, weight=weight, scales=scales, bias=bias)


class RowScaledProduct:
    """Torch's scaled product of inputs and weights with a scale a row; it rounds to bfloat16."""

    def __init__(
        self, weight: Tensor, scales: Scales, bias: Tensor | None, quantise: Quantise
    ) -> None:
        rows, columns = weight.shape
        if rows % _MULTIPLE or columns % _MULTIPLE:
            raise UnsupportedModel(f"FP8 weights {rows} by {columns}: no multiples of {_MULTIPLE}")
        self._columns = weight.t()
        by_row = scales.weight.repeat_interleave(scales.height, 0)[:rows]
        self._scales = by_row.view(1, rows)
        self._width, self._fixed = scales.width, scales.fixed
        self._bias = None if bias is None else bias.bfloat16()
        self._quantise = quantise

    def __call__(self, x: Tensor) -> Tensor:
        """See Fp8Product."""
        if not len(x):
            return x.new_empty(0, self._columns.shape[1])
        values, by_row = self._quantise(x, self._width, self._fixed)
        out = torch._scaled_mm(
            values, self._columns, by_row, self._scales, self._bias, out_dtype=torch.bfloat16
        )
        return out.to(x.dtype)


class BlockScaledProduct:
    """The Triton kernel's product of inputs and weights with scales by blocks."""

    def __init__(self, weight: Tensor, scales: Scales, bias: Tensor | None) -> None:
        from engine.kernels import fp8_triton

        self._kernels = fp8_triton
        self._weight, self._scales, self._bias = weight, scales, bias

    def __call__(self, x: Tensor) -> Tensor:
        """See Fp8Product."""
        (rows, columns), outputs = x.shape, len(self._weight)
        out = x.new_empty(rows, outputs)
        if not rows:
            return out
        scales, bias = self._scales, self._bias
        values, by_row = quantised_by_triton(x, scales.width, scales.fixed)
        # Many narrow programs for a step, as it is bound by the reading of weights.
        tall, wide, warps = (16, 32, 4) if rows <= 32 else (64, 128, 4)
        self._kernels.block_product[(-(-rows // tall), -(-outputs // wide))](
            values,
            self._weight,
            by_row,
            scales.weight,
            out if bias is None else bias,
            out,
            rows,
            OUT=outputs,
            IN=columns,
            HEIGHT=scales.height,
            WIDTH=scales.width,
            TALL=tall,
            WIDE=wide,
            BIASED=bias is not None,
            num_warps=warps,
            num_stages=4,
        )
        return out


def quantised_by_triton(x: Tensor, width: int, fixed: Tensor | None) -> tuple[Tensor, Tensor]:
    """See `quantised`; one kernel."""
    from engine.kernels import fp8_triton

    rows, columns = x.shape
    if width > _MOST_WIDTH:
        raise UnsupportedModel(f"FP8 inputs of {width} numbers a row; {_MOST_WIDTH} are supported")
    groups, dims = -(-columns // width), 1 << (width - 1).bit_length()
    values = torch.empty(x.shape, dtype=E4M3, device=x.device)
    scales = torch.empty((rows, groups), dtype=torch.float32, device=x.device)
    fp8_triton.quantise[(rows, groups)](
        x.contiguous(),
        scales if fixed is None else fixed,
        values,
        scales,
        LARGEST,
        LEAST_SCALE,
        IN=columns,
        WIDTH=width,
        DIMS=dims,
        FIXED=fixed is not None,
        num_warps=min(16, max(1, dims // 512)),
    )
    return values, scales
