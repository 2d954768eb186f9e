"""The product of rows with one weight for each group of rows: one interface, two ways.

A group may have no rows. On Hopper and Blackwell GPUs torch's grouped product takes the groups'
ends from the device, so that a recorded step is right for every routing. Elsewhere a loop
multiplies group by group, for which the ends come to the host.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.functional import grouped_mm, linear

Tensor = torch.Tensor

# The processors that torch's grouped kernel is built for (ATen/native/cuda/GroupedBlas.cpp): it
# loops on others, and for other types, and waits for the device.
_CAPABILITIES = (9, 10)
# A rule of the kernel: rows begin at multiples of so many bytes.
_ALIGNED_BYTES = 16


class GroupedProduct(Protocol):
    """Multiplies each group of rows with the group's own weight."""

    def __call__(self, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        """x [rows, in] with weight [groups, out, in] to [rows, out].

        `ends` [groups] int32 is the row behind each group; the last one is the number of rows.
        """
        ...


def product_by_loop(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """See GroupedProduct: every device and type; waits for the device."""
    out = x.new_empty(len(x), weight.shape[1])
    begin = 0
    for group, end in enumerate(ends.tolist()):
        if end > begin:
            out[begin:end] = linear(x[begin:end], weight[group])
        begin = end
    return out


def product_by_torch(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """See GroupedProduct: one launch of torch's kernel, which waits for nothing.

    UNVERIFIED on a GPU: tests compare it with the loop on a CPU.
    """
    return grouped_mm(x, weight.transpose(1, 2), offs=ends)


def grouped_product(weight: Tensor) -> GroupedProduct:
    """The fastest that can multiply with this stacked weight."""
    return product_by_loop if why_not_recorded(weight) else product_by_torch


def why_not_recorded(weight: Tensor) -> str | None:
    """Why products with this stacked weight cannot be recorded, or None."""
    if not weight.is_cuda:
        return f"the experts are on {weight.device.type}"
    if weight.dtype != torch.bfloat16:
        return f"the experts are in {weight.dtype}, not in bfloat16"
    if torch.cuda.get_device_capability(weight.device)[0] not in _CAPABILITIES:
        return "torch has no grouped kernel for this GPU"
    if any(size * weight.element_size() % _ALIGNED_BYTES for size in weight.shape[1:]):
        return f"experts of {tuple(weight.shape[1:])} are not aligned"
    return None
