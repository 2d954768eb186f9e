"""The block numbers of a sequence as an array, kept from step to step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int32]

_NONE: Numbers = np.empty(0, np.int32)


class BlockTable:
    """Converts the block lists of one sequence, each list once.

    A sequence gets a new list with each new block, and no list is changed in place. So the same
    list needs no conversion, and of a list that goes on the last list only the new blocks do.
    """

    __slots__ = ("_blocks", "_numbers")

    def __init__(self) -> None:
        self._blocks: list[int] = []
        self._numbers = _NONE

    def of(self, blocks: list[int]) -> Numbers:
        """The block numbers, int32 [blocks]. The caller must not write to them."""
        if blocks is not self._blocks:
            known = len(self._blocks)
            goes_on = 0 < known <= len(blocks) and blocks[:known] == self._blocks
            new = np.array(blocks[known:] if goes_on else blocks, np.int32)
            self._numbers = np.concatenate((self._numbers, new)) if goes_on else new
            self._blocks = blocks
        return self._numbers
