"""One call that appends to many streams: its argument, and the answer for each stream.

The parts of the streams follow each other in one text, because an argument for each entry would
cost more time than all else. `scripts.APPEND` reads it:

    id (22 bytes) | fence (4) | flags (1) | sequence number of the first entry (4) | entries (4)
    with the flag CREATE: the sealed request, the owner, the tenant
    the entries

Each text has its length (4 bytes) before it. Numbers are big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from cluster.journal.keys import ID_CHARACTERS

CREATE = 1
ENDED = 2
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


@dataclass(frozen=True, slots=True)
class NewStream:
    """The fields of a stream that is created."""

    request: bytes
    owner: bytes
    tenant: bytes


def part(
    stream_id: bytes,
    fence: int,
    created: NewStream | None,
    first: int,
    entries: Sequence[bytes],
    *,
    ended: bool,
) -> bytes:
    """The part of one stream; `first` is the sequence number of the first of the `entries`."""
    flags = (0 if created is None else CREATE) | (ENDED if ended else 0)
    pieces = [_head(stream_id, fence, flags, first, len(entries))]
    if created is not None:
        for text in (created.request, created.owner, created.tenant):
            pieces += (_length(len(text)), text)
    for entry in entries:
        pieces += (_length(len(entry)), entry)
    return b"".join(pieces)
