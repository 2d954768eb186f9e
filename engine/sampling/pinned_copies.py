"""Copies from the host to a device that wait for nothing."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray


def send(array: NDArray[Any], there: torch.Tensor) -> None:
    """Copy an array into a tensor of its shape and type, in the order of the stream.

    A copy of the array travels, so the array may change at once.
    """
    here = torch.empty(there.shape, dtype=there.dtype, pin_memory=there.is_cuda)
    here.numpy()[...] = array
    there.copy_(here, non_blocking=True)


def on_device(array: NDArray[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The array as a new tensor; see `send`."""
    there = torch.empty(array.shape, dtype=dtype, device=device)
    send(array, there)
    return there
