"""Weights one behind the other, in pages of 2 MiB where the system gives them.

A step for few streams reads every weight once and does little else: in pages of 4 KiB each one has
to be looked up, and the processor reads ahead no further than to its end.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch

_PAGE = 2 << 20
_AT_A_TIME = 16 * _PAGE
_LINE = 64


class HugePages:
    """Room for tensors of one owner; it is given back with the last of them."""

    def __init__(self) -> None:
        self._rest = torch.empty(0, dtype=torch.uint8)

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of it in here."""
        size = tensor.nbytes
        whole = -(-size // _LINE) * _LINE
        if self._rest.numel() < whole:
            self._rest = _room(max(whole, _AT_A_TIME))
        kept = self._rest[:size].view(tensor.dtype).view(tensor.shape)
        self._rest = self._rest[whole:]
        return kept.copy_(tensor)


def _room(size: int) -> torch.Tensor:
    """Memory that begins with a page, flat uint8."""
    memory = mmap.mmap(-1, size + _PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A kernel without them, or one that is told not to give any, gives small ones.
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    data = torch.frombuffer(memory, dtype=torch.uint8)
    first = -data.data_ptr() % _PAGE
    return data[first : first + size]
