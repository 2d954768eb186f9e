"""Memory of another process of this host, read in place; see `engine/kv/shared_segments.py`."""

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
_FOUND_AT_ONCE = 16 << 20


class MappedExtent(NamedTuple):
    """Bytes in a segment of another process; `generation` is that of what was written there.

    A tuple, because one is made for each message: 0.3 us, and a frozen dataclass 4.
    """

    pid: int
    descriptor: int
    identity: int
    generation: int
    offset: int
    size: int


class MappedMemory:
    """Another process's segment, mapped to be read. ChannelBroken where it is not what it should
    be.

    It goes away with the last tensor over it.
    """

    def __init__(self, place: MappedExtent) -> None:
        try:
            self._map, self._size = _map(place)
        except (OSError, ValueError) as error:
            raise ChannelBroken(f"shared memory of process {place.pid}: {error}") from error
        self._data = _tensor_over(self._map, self._size)
        self._viewed = (0, self._size, self._data)

    def view(self, place: MappedExtent) -> torch.Tensor:
        """The bytes of `place`, only to be read; ChannelBroken if they are not there any more.

        `check` afterwards says whether what was read is of that time.
        """
        self.check(place)
        # Frames lie in the same bytes again and again; to make a tensor takes as long as all else.
        offset, size, data = self._viewed
        if (offset, size) != (place.offset, place.size):
            offset, size = place.offset, place.size
            if offset + size > self._size:
                raise ChannelBroken(f"{size} bytes at {offset} of a segment of {self._size}")
            data = self._data[offset : offset + size]
            self._viewed = offset, size, data
        return data

    def check(self, place: MappedExtent) -> None:
        """ChannelBroken if the sender has taken the bytes of `place` back."""
        if HEAD.unpack_from(self._map, 0) != (place.identity, place.generation):
            raise ChannelBroken("the sender has taken its buffer back")

    def word(self, number: int) -> int:
        """That word of the segment's header."""
        return int(WORD.unpack_from(self._map, word_at(number))[0])


def _tensor_over(mapping: mmap.mmap, size: int) -> torch.Tensor:
    """The data of a segment as a flat uint8 tensor: torch has no word for "only to be read"."""
    start = np.frombuffer(mapping, np.uint8).ctypes.data + HEADER_BYTES
    data = (ctypes.c_uint8 * size).from_address(start)
    data.mapping = mapping  # type: ignore[attr-defined]  # which lives as long as the tensor
    return torch.frombuffer(data, dtype=torch.uint8)


def _map(place: MappedExtent) -> tuple[mmap.mmap, int]:
    """The mapping and how many bytes of data it has."""
    path = f"/proc/{place.pid}/fd/{place.descriptor}"
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
    # All at once would keep the interpreter's lock for milliseconds a gigabyte.
    with suppress(OSError):  # a kernel before 5.14 finds each page when it is first read
        for start in range(0, size, _FOUND_AT_ONCE):
            mapping.madvise(_POPULATE_READ, start, min(_FOUND_AT_ONCE, size - start))
    return mapping, size - HEADER_BYTES
