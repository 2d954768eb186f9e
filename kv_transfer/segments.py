"""Memory that another process of this host can read: sealed memfds, opened under /proc.

A segment is a page of header and then the data. It has no name in any file system, so nothing is
left of it when the last process that holds or maps it is gone, however it went. It is sealed
against shrinking: a reader's mapping can never fault.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import secrets
import struct
import weakref
from typing import NamedTuple

import numpy as np
import torch

from kv_transfer.errors import LaneBroken

_HEADER_BYTES = mmap.PAGESIZE
_HEAD = struct.Struct("<QQ")  # identity, generation
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Place(NamedTuple):
    """Bytes in a segment of another process; `generation` is that of what was written there.

    A tuple, because one is made for each message: 0.3 us, and a frozen dataclass 4.
    """

    pid: int
    descriptor: int
    identity: int
    generation: int
    offset: int
    size: int


class Segment(mmap.mmap):
    """One segment of this process. It lives as long as the tensor that was made of it."""

    descriptor: int
    identity: int
    generation: int

    @classmethod
    def make(cls, size: int) -> Segment:
        """A segment for `size` bytes of data."""
        descriptor = os.memfd_create("tandem-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, _HEADER_BYTES + size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            segment = cls(descriptor, _HEADER_BYTES + size)
        except OSError:
            os.close(descriptor)
            raise
        segment.descriptor = descriptor
        weakref.finalize(segment, os.close, descriptor)
        segment.identity = secrets.randbits(64)
        segment.generation = 0
        segment.renew()
        return segment

    def renew(self) -> int:
        """From now on what was read of the data before is out of date; the new generation."""
        self.generation += 1
        _HEAD.pack_into(self, 0, self.identity, self.generation)
        return self.generation


# By the address of the data.
_segments: weakref.WeakValueDictionary[int, Segment] = weakref.WeakValueDictionary()


def shared_tensor(size: int) -> torch.Tensor:
    """A flat uint8 tensor in a segment of its own; OSError where the memory is refused."""
    segment = Segment.make(size)
    data = torch.frombuffer(segment, dtype=torch.uint8, offset=_HEADER_BYTES)
    _segments[data.data_ptr()] = segment
    return data


def segment_of(data: torch.Tensor) -> tuple[Segment, int] | None:
    """The segment in which a tensor lies, and where in its data; None for private memory."""
    start = data.untyped_storage().data_ptr()
    segment = _segments.get(start)
    return None if segment is None else (segment, data.data_ptr() - start)


class Mapped:
    """Another process's segment, mapped to be read. LaneBroken where it is not what it should be.

    It goes away with the last tensor over it.
    """

    def __init__(self, place: Place) -> None:
        try:
            self._map, self._size = _map(place)
        except (OSError, ValueError) as error:
            raise LaneBroken(f"shared memory of process {place.pid}: {error}") from error
        self._data = _tensor_over(self._map, self._size)
        self._viewed = (0, self._size, self._data)

    def view(self, place: Place) -> torch.Tensor:
        """The bytes of `place`, only to be read; LaneBroken if they are not there any more.

        `check` afterwards says whether what was read is of that time.
        """
        self.check(place)
        # Frames lie in the same bytes again and again; to make a tensor takes as long as all else.
        offset, size, data = self._viewed
        if (offset, size) != (place.offset, place.size):
            offset, size = place.offset, place.size
            if offset + size > self._size:
                raise LaneBroken(f"{size} bytes at {offset} of a segment of {self._size}")
            data = self._data[offset : offset + size]
            self._viewed = offset, size, data
        return data

    def check(self, place: Place) -> None:
        """LaneBroken if the sender has taken the bytes of `place` back."""
        if _HEAD.unpack_from(self._map, 0) != (place.identity, place.generation):
            raise LaneBroken("the sender has taken its buffer back")


def _tensor_over(mapping: mmap.mmap, size: int) -> torch.Tensor:
    """The data of a segment as a flat uint8 tensor: torch has no word for "only to be read"."""
    start = np.frombuffer(mapping, np.uint8).ctypes.data + _HEADER_BYTES
    data = (ctypes.c_uint8 * size).from_address(start)
    data.mapping = mapping  # type: ignore[attr-defined]  # which lives as long as the tensor
    return torch.frombuffer(data, dtype=torch.uint8)


def _map(place: Place) -> tuple[mmap.mmap, int]:
    """The mapping and how many bytes of data it has."""
    path = f"/proc/{place.pid}/fd/{place.descriptor}"
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ValueError("it is not sealed")
        size = os.fstat(descriptor).st_size
        if size <= _HEADER_BYTES:
            raise ValueError("it is too small")
        mapping = mmap.mmap(descriptor, size, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)
    finally:
        os.close(descriptor)
    return mapping, size - _HEADER_BYTES
