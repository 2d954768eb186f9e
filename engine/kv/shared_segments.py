"""Memory that another process of this host can read: sealed memfds, opened under /proc.

A segment is a page of header and then the data. It has no name in any file system, so it is gone
when the last process that holds or maps it is gone. It is sealed against shrinking, so that a
reader's mapping can never fault.

    header   identity, generation, and words of the segment's maker
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import struct
import weakref

import torch

HEADER_BYTES = mmap.PAGESIZE
HEAD = struct.Struct("<QQ")  # identity, generation
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
WORD = struct.Struct("<Q")
WORDS = (HEADER_BYTES - HEAD.size) // WORD.size


def word_at(number: int) -> int:
    """The offset of a header's word in a segment, in bytes."""
    return HEAD.size + number * WORD.size


class SharedSegment(mmap.mmap):
    """A segment of this process. It lives as long as the tensor that was made of it."""

    descriptor: int
    identity: int
    generation: int

    @classmethod
    def make(cls, size: int) -> SharedSegment:
        """A segment for `size` bytes of data."""
        descriptor = os.memfd_create("tandem-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, HEADER_BYTES + size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
            segment = cls(descriptor, HEADER_BYTES + size)
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
        """Declare all earlier reads of the data out of date; returns the new generation."""
        self.generation += 1
        HEAD.pack_into(self, 0, self.identity, self.generation)
        return self.generation

    def write_word(self, number: int, value: int) -> None:
        """Set a word of the header, which has WORDS words, all 0 at first."""
        WORD.pack_into(self, word_at(number), value)


# By the address of the data.
_segments: weakref.WeakValueDictionary[int, SharedSegment] = weakref.WeakValueDictionary()


def shared_tensor(size: int) -> torch.Tensor:
    """A flat uint8 tensor in a new segment; OSError where the system refuses the memory."""
    segment = SharedSegment.make(size)
    data = torch.frombuffer(segment, dtype=torch.uint8, offset=HEADER_BYTES)
    _segments[data.data_ptr()] = segment
    return data


def segment_of(data: torch.Tensor) -> tuple[SharedSegment, int] | None:
    """A tensor's segment and its offset in the data, in bytes; None for private memory."""
    start = data.untyped_storage().data_ptr()
    segment = _segments.get(start)
    return None if segment is None else (segment, data.data_ptr() - start)
