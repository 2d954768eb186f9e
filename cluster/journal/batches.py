"""One call that appends to many streams: its argument, and the answer for each stream.

The parts of the streams follow each other in one text, because an argument for each entry would
cost more time than all else. `scripts.APPEND` reads it:

    id (22 bytes) | fence (4) | flags (1) | sequence number of the first entry (4) | entries (4)
    with the flag CREATE: the sealed request, the tenant
    the entries

Each text has its length (4 bytes) before it. Numbers are big-endian. A part with the flag CHECK is
checked against what Redis has of the stream.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from cluster.journal.keys import ID_CHARACTERS

CREATE = 1
ENDED = 2
CHECK = 4
_head = struct.Struct(f">{ID_CHARACTERS}sIBII").pack
_length = struct.Struct(">I").pack


class Appended(StrEnum):
    """The answer for one stream.

    - WRITTEN: all entries are there, perhaps since an earlier try.
    - CANCELLED: the same, and the stream is to be cancelled.
    - FENCED: another router owns the stream.
    - GONE: there is no such stream any more.
    - TORN: entries before these are missing. A replica of Redis took over without them, perhaps.
    """

    WRITTEN = "w"
    CANCELLED = "c"
    FENCED = "f"
    GONE = "g"
    TORN = "t"


_ANSWERS = {ord(one.value): one for one in Appended}


@dataclass(frozen=True, slots=True)
class NewStream:
    """The fields of a stream that is created. Its request arrived at `arrived_at` (epoch)."""

    request: bytes
    tenant: bytes
    arrived_at: float = 0.0


def part(
    stream_id: bytes,
    fence: int,
    flags: int,
    created: NewStream | None,
    first: int,
    entries: Sequence[bytes],
) -> bytes:
    """The part of one stream; `first` is the sequence number of the first of the `entries`.

    The entries have their lengths before them (`framed`). A stream is `created` with CREATE alone.
    """
    head = _head(stream_id, fence, flags, first, len(entries))
    if created is not None:
        head += framed(created.request) + framed(created.tenant)
    return b"".join((head, *entries))


def framed(text: bytes) -> bytes:
    """A text with its length before it."""
    return _length(len(text)) + text


def read_answers(letters: bytes) -> list[Appended]:
    """The answers for the streams of a batch, in their order."""
    return [_ANSWERS[letter] for letter in letters]
