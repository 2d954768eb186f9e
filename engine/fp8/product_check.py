"""A check of a product with FP8 weights, which sees one wrong scale or one wrong block of it.

The inputs are numbers of E4M3 times one scale, so that every way to round them finds the same. Each
row of inputs has numbers in 128 columns alone, so that no other block hides a wrong one.

Bound of an answer's error: 2^-7 of its parts for two roundings to bfloat16, and 2^-6 of D, the root
of the sum of the squares of its terms. A term is exact, as a product of two E4M3 numbers has 8
bits; but a tensor core truncates it and the 4 partial sums at 13 bits below the largest
(DeepSeek-V3's technical report, 2024, section 3.3.2: "around 14 bits"), which for 132 truncations
of random signs and sums of up to 4 D is √132 · 2^-13 · 4 = 0.6 % of D, and 2^-6 is 1.6 %.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.errors import UnsupportedModel
from engine.fp8.values import E4M3, LARGEST, Scales, dequantised_parts, quantised

Tensor = torch.Tensor

_ROUNDED = 2.0**-7
_SUMMED = 2.0**-6
# The columns of a row of inputs that have numbers.
_STRETCH = 128
# Kernels choose their tiles by the number of rows: some of a step, and some of a prompt.
_ROWS_OF_STEP, _ROWS_OF_PROMPT = 16, 64
# A power of two, so that inputs are exact in every type of activations.
_SCALE = 2.0**-8


def check_product(
    product: Callable[[Tensor], Tensor],
    weight: Tensor,
    scales: Scales,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> None:
    """Compare with the product of the same FP8 numbers in float32; UnsupportedModel if it differs.

    `dtype` is that of activations. The time is that of a prompt of a few hundred tokens.
    """
    x = _inputs(weight, scales, dtype)
    steps = torch.cat([product(part) for part in x.split(_ROWS_OF_STEP)])
    worst = torch.zeros((), device=x.device)
    values, by_row = quantised(x, scales.width, scales.fixed)
    wide = values.float() * by_row.repeat_interleave(scales.width, 1)[:, : x.shape[1]]
    for answers in (product(x), steps):
        for outputs, part in dequantised_parts(weight, scales):
            exact = wide @ part.T
            added = x.new_zeros(()) if bias is None else bias[outputs].float()
            bound = _ROUNDED * (exact.abs() + added.abs()) + _SUMMED * (wide**2 @ part.T**2).sqrt()
            off = (answers[:, outputs].float() - exact - added).abs()
            # 0 of 0 is right, and a NaN is not.
            share = torch.where(off == 0, 0.0, off / bound).nan_to_num(torch.inf)
            worst = torch.maximum(worst, share.max())
    if worst.item() > 1:
        kind = f"{weight.shape[0]} by {weight.shape[1]}"
        raise UnsupportedModel(
            f"the product with FP8 weights {kind} is wrong on this device: an answer is off by "
            f"{worst.item():.2g} times the bound"
        )


def _inputs(weight: Tensor, scales: Scales, dtype: torch.dtype) -> Tensor:
    """[rows, in]: row i has numbers in stretch i of the columns, and zeros elsewhere."""
    columns = weight.shape[1]
    stretches = -(-columns // _STRETCH)
    rows = max(stretches, _ROWS_OF_PROMPT)
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(rows, columns, generator=generator) * (LARGEST / 4)
    numbers = numbers.clamp(-LARGEST, LARGEST).to(E4M3).float()
    stretch = torch.arange(columns) // _STRETCH
    # With the largest number in each, a scale of the inputs' own is _SCALE.
    numbers[:, ::_STRETCH] = LARGEST
    numbers[torch.arange(rows)[:, None] % stretches != stretch] = 0.0
    scale = _SCALE if scales.fixed is None else scales.fixed
    return (numbers.to(weight.device) * scale).to(dtype)
