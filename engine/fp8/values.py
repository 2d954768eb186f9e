"""FP8 numbers and the scales that they are multiplied by.

E4M3 has 3 bits of mantissa and ends at 448 (Micikevicius et al. 2022, "FP8 formats for deep
learning"). Rounding is to nearest even, and larger numbers become 448; NaNs stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

import torch

from engine.errors import UnsupportedModel

Tensor = torch.Tensor

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0
# The rows and columns that share a scale where weights are scaled by blocks.
BLOCK = 128
# Numerics: the least scale, so that a row of zeros is not divided by zero.
LEAST_SCALE = 1e-10
# The rows of a weight that are brought back at a time, which bounds the float32 copies.
_ROWS = 1024
# The first NVIDIA devices with products of FP8.
_FIRST_CAPABILITY = (8, 9)


def has_fp8(device: torch.device) -> bool:
    """Whether the device has FP8 products: an NVIDIA GPU of capability 8.9 or later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _FIRST_CAPABILITY


def in_type(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers in another type; in FP8, numbers beyond its largest become its largest."""
    return (x.clamp(-LARGEST, LARGEST) if dtype == E4M3 else x).to(dtype)


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales of a weight [out, in] and of its inputs [rows, in].

    `weight` [⌈out / height⌉, ⌈in / width⌉] float32: each has a block of height by width. A row of
    inputs has a scale for every `width` numbers, its own or `fixed` [1].
    """

    weight: Tensor
    height: int
    width: int
    fixed: Tensor | None = None

    @property
    def is_by_rows(self) -> bool:
        """Whether a row of weights has one scale."""
        return self.weight.shape[1] == 1


def scales_of(shape: torch.Size, stored: Tensor, fixed: Tensor | None) -> Scales:
    """The scales of a weight of this shape as they are stored: for all of it, by row, by block.

    UnsupportedModel for any other shape.
    """
    rows, columns = shape
    grid = (-(-rows // BLOCK), -(-columns // BLOCK))
    scales = stored.float()
    if stored.numel() == 1:
        found = Scales(scales.view(1, 1), rows, columns)
    elif stored.shape in ((rows,), (rows, 1)):
        found = Scales(scales.view(rows, 1), 1, columns)
    elif stored.shape == grid:
        found = Scales(scales, BLOCK, BLOCK)
    else:
        raise UnsupportedModel(f"FP8 scales of shape {[*stored.shape]} for weights {[*shape]}")
    one = None if fixed is None else fixed.float().view(1)
    return Scales(found.weight, found.height, found.width, one)


def joined_scales(parts: Sequence[Scales], rows: Sequence[int]) -> Scales:
    """The scales of weights of so many rows one below the other, which have the same inputs.

    Rows are scaled as before. Inputs get the largest of the fixed scales.
    """
    # So many rows have the same scale in every part, and no such group is in two parts.
    height = gcd(*(part.height for part in parts), *rows[:-1])
    weights = [
        part.weight.repeat_interleave(part.height // height, 0)[: -(-count // height)]
        for part, count in zip(parts, rows, strict=True)
    ]
    fixed = [part.fixed for part in parts if part.fixed is not None]
    largest = torch.cat(fixed).amax(0, keepdim=True) if fixed else None
    return Scales(torch.cat(weights), height, parts[0].width, largest)


def quantised(x: Tensor, width: int, fixed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Inputs [rows, in] in FP8, and their scales [rows, ⌈in / width⌉] float32 (see Scales)."""
    rows, columns = x.shape
    groups = -(-columns // width)
    padded = torch.nn.functional.pad(x.float(), (0, groups * width - columns))
    wide = padded.view(rows, groups, width)
    if fixed is None:
        scales = (wide.abs().amax(2) / LARGEST).clamp(min=LEAST_SCALE)
    else:
        scales = fixed.expand(rows, groups).contiguous()
    values = in_type(wide / scales[..., None], E4M3)
    return values.flatten(1)[:, :columns].contiguous(), scales


def dequantised(values: Tensor, scales: Scales, dtype: torch.dtype) -> Tensor:
    """A weight [out, in]: FP8 times scale in float32, then rounded."""
    out = torch.empty(values.shape, dtype=dtype, device=values.device)
    for rows, part in dequantised_parts(values, scales):
        out[rows] = part
    return out


def dequantised_parts(values: Tensor, scales: Scales) -> Iterator[tuple[slice, Tensor]]:
    """The same in float32, some rows at a time: which of them, and the rows."""
    for first in range(0, len(values), _ROWS):
        part = values[first : first + _ROWS].float()
        block = torch.arange(first, first + len(part), device=part.device) // scales.height
        rows = slice(first, first + len(part))
        yield rows, part * _by_column(scales.weight[block], scales.width, part)


def plain_product(x: Tensor, weight: Tensor, scales: Scales, bias: Tensor | None) -> Tensor:
    """The product [rows, out] with inputs rounded to FP8, by operations that any device has."""
    values, by_row = quantised(x, scales.width, scales.fixed)
    numbers = values.float()
    rounded = (numbers * _by_column(by_row, scales.width, numbers)).to(x.dtype)
    return torch.nn.functional.linear(rounded, dequantised(weight, scales, x.dtype), bias)


def _by_column(scales: Tensor, width: int, like: Tensor) -> Tensor:
    """Scales [rows, groups] as [rows, columns], or as what stretches to that."""
    if scales.shape[1] == 1:
        return scales
    return scales.repeat_interleave(width, 1)[:, : like.shape[1]]
