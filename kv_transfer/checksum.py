"""What every frame carries behind its bytes: their 64-bit checksum (XXH3, xxhash.com)."""

from __future__ import annotations

import struct

import torch
import xxhash


def checksum(data: torch.Tensor) -> int:
    """XXH3 of a flat uint8 tensor, copied to the host first if it lies elsewhere."""
    return int(xxhash.xxh3_64_intdigest(data.cpu().numpy().data))


_SEAL = struct.Struct("<QQ")  # checksum, and whether there is a frame at all
_GATHERED, _VOID = 0x5EA1ED, 0
SEAL_BYTES = _SEAL.size


def seal(message: torch.Tensor, *, void: bool = False) -> None:
    """Write the seal of what is before it to a message's last bytes; void: of nothing."""
    kind, of = (_VOID, 0) if void else (_GATHERED, checksum(message[:-SEAL_BYTES]))
    packed = bytearray(_SEAL.pack(of, kind))
    message[-SEAL_BYTES:].copy_(torch.frombuffer(packed, dtype=torch.uint8))


def is_void(message: torch.Tensor) -> bool:
    """Whether its sender says that there is no frame in it."""
    return _seal_of(message)[1] == _VOID


def is_sound(message: torch.Tensor) -> bool:
    """Whether a message's bytes are those that were sealed."""
    of, kind = _seal_of(message)
    return kind == _GATHERED and of == checksum(message[:-SEAL_BYTES])


def _seal_of(message: torch.Tensor) -> tuple[int, int]:
    of, kind = _SEAL.unpack(bytes(message[-SEAL_BYTES:].cpu().numpy()))
    return of, kind
