"""Keeps weights contiguous, in pages of 2 MiB where the system gives them.

A step for few streams reads every weight once and does little else. In pages of 4 KiB the processor
must look up each page, and it reads ahead no further than to the page's end.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch

_PAGE = 2 << 20
# Tuned: so much memory is mapped at a time.
_AT_A_TIME = 16 * _PAGE
# A bound: tensors begin with a cache line.
_LINE = 64


class HugePages:
    """Memory for tensors of one owner; it is freed with the last tensor."""

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of the tensor in this memory."""
        size = tensor.nbytes
        whole = -(-size // _LINE) * _LINE
        if self._left.numel() < whole:
            self._left = _memory(max(whole, _AT_A_TIME))
        kept = self._left[:size].view(tensor.dtype).view(tensor.shape)
        self._left = self._left[whole:]
        return kept.copy_(tensor)


def _memory(size: int) -> torch.Tensor:
    """Memory that begins with a page, flat uint8."""
    memory = mmap.mmap(-1, size + _PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A kernel without huge pages, or with huge pages switched off, gives small pages.
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    data = torch.frombuffer(memory, dtype=torch.uint8)
    first = -data.data_ptr() % _PAGE
    return data[first : first + size]
