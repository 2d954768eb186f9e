"""What every frame carries behind its bytes: their checksum, XXH3 (xxhash.com) in host memory.

On a device it is the sum of their 64-bit words: a mixture of frames is found by it, and the bytes
need not be fetched, which takes longer than moving them.
"""

from __future__ import annotations

import struct
from typing import Literal

import torch
import xxhash

# A message's bytes are those that were sealed, or not; or its sender says that there are none.
Found = Literal["sound", "corrupted", "void"]


def checksum(data: torch.Tensor) -> int:
    """XXH3 of a flat uint8 tensor in host memory."""
    return int(xxhash.xxh3_64_intdigest(data.numpy().data))


def word_sum(data: torch.Tensor) -> torch.Tensor:
    """The sum of its 64-bit words, on its device; the number of bytes is a multiple of 8."""
    return data.view(torch.int64).sum()


_SEAL = struct.Struct("<QQ")  # checksum, and whether there is a frame at all
_GATHERED, _VOID = 0x5EA1ED, 0
SEAL_BYTES = _SEAL.size


def seal(message: torch.Tensor, *, void: bool = False) -> None:
    """Write the seal of what is before it to a message's last bytes; void: of nothing."""
    if message.device.type != "cpu":
        _seal_there(message, void)
        return
    kind, of = (_VOID, 0) if void else (_GATHERED, checksum(message[:-SEAL_BYTES]))
    packed = bytearray(_SEAL.pack(of, kind))
    message[-SEAL_BYTES:].copy_(torch.frombuffer(packed, dtype=torch.uint8))


def inspect(message: torch.Tensor) -> Found:
    """What a message's seal says of its bytes."""
    on_host = message.device.type == "cpu"
    of, kind, found = _read_here(message) if on_host else _read_there(message)
    if kind == _VOID:
        return "void"
    return "sound" if kind == _GATHERED and of == found else "corrupted"


def _read_here(message: torch.Tensor) -> tuple[int, int, int]:
    """What was sealed, its kind, and what is there now."""
    of, kind = _SEAL.unpack(bytes(message[-SEAL_BYTES:].numpy()))
    return of, kind, checksum(message[:-SEAL_BYTES]) if kind == _GATHERED else 0


def _seal_there(message: torch.Tensor, void: bool) -> None:
    """Without waiting for the device: no number comes to the host."""
    end = message[-SEAL_BYTES:].view(torch.int64)
    end[1] = _VOID if void else _GATHERED
    if not void:
        end[0] = word_sum(message[:-SEAL_BYTES])


def _read_there(message: torch.Tensor) -> tuple[int, int, int]:
    """As `_read_here`, in one wait for the device."""
    end = message[-SEAL_BYTES:].view(torch.int64)
    of, kind, found = torch.cat((end, word_sum(message[:-SEAL_BYTES]).view(1))).tolist()
    return of, kind, found
