"""Reading a memory segment of another process; see `engine/kv/shared_segments.py`."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch

from engine.kv.shared_segments import HEAD, HEADER_BYTES, SEALS, WORD, word_at
from kv_transfer.errors import ChannelBroken

_POPULATE_READ = 22  # MADV_POPULATE_READ
# Tuned: the bytes whose pages one call maps; the interpreter's lock is free between the calls.
_POPULATE_BYTES = 16 << 20


class MappedExtent(NamedTuple):
    """A range of bytes in a segment of another process, at one `generation` of its content.

    A tuple, because every message makes one and a frozen dataclass takes longer to make.
    """

    pid: int
    descriptor: int
    identity: int
    generation: int
    offset: int
    size: int


class MappedMemory:
    """Another process's segment, mapped for reading; ChannelBroken if it is not a valid segment.

    The mapping lives as long as the last tensor over it.
    """

    def __init__(self, extent: MappedExtent) -> None:
        try:
            self._map, self._size = _map(extent)
        except (OSError, ValueError) as error:
            raise ChannelBroken(f"shared memory of process {extent.pid}: {error}") from error
        self._data = _tensor_over(self._map, self._size)
        self._viewed = (0, self._size, self._data)

    def view(self, extent: MappedExtent) -> torch.Tensor:
        """The bytes of the extent, for reading; ChannelBroken if the sender took them back.

        After the read, `check` tells whether the bytes were valid all the time.
        """
        self.check(extent)
        # Frames use the same bytes again and again, and making a tensor takes half of this call.
        offset, size, data = self._viewed
        if (offset, size) != (extent.offset, extent.size):
            offset, size = extent.offset, extent.size
            if offset + size > self._size:
                raise ChannelBroken(f"{size} bytes at {offset} of a segment of {self._size}")
            data = self._data[offset : offset + size]
            self._viewed = offset, size, data
        return data

    def check(self, extent: MappedExtent) -> None:
        """Raise ChannelBroken if the sender has taken the bytes of the extent back."""
        if HEAD.unpack_from(self._map, 0) != (extent.identity, extent.generation):
            raise ChannelBroken("the sender has taken its buffer back")

    def word(self, number: int) -> int:
        """The value of that word of the segment's header."""
        return int(WORD.unpack_from(self._map, word_at(number))[0])


def _tensor_over(mapping: mmap.mmap, size: int) -> torch.Tensor:
    """The data of a segment as a flat uint8 tensor; torch has no read-only tensors."""
    start = np.frombuffer(mapping, np.uint8).ctypes.data + HEADER_BYTES
    data = (ctypes.c_uint8 * size).from_address(start)
    data.mapping = mapping  # type: ignore[attr-defined]  # keeps it alive with the tensor
    return torch.frombuffer(data, dtype=torch.uint8)


def _map(extent: MappedExtent) -> tuple[mmap.mmap, int]:
    """The mapping, and the size of its data in bytes."""
    path = f"/proc/{extent.pid}/fd/{extent.descriptor}"
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS != SEALS:
            raise ValueError("it is not sealed")
        size = os.fstat(descriptor).st_size
        if size <= HEADER_BYTES:
            raise ValueError("it is too small")
        mapping = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
    finally:
        os.close(descriptor)
    with suppress(OSError):  # a kernel before 5.14 maps each page at its first read
        for start in range(0, size, _POPULATE_BYTES):
            mapping.madvise(_POPULATE_READ, start, min(_POPULATE_BYTES, size - start))
    return mapping, size - HEADER_BYTES
