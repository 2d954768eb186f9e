"""The seal behind every frame's bytes: in host memory their XXH3 checksum (xxhash.com).

On a device the seal is the sum of the bytes' 64-bit words. The sum finds a mixture of frames, and
the host need not fetch the bytes, which takes longer than moving them.
"""

from __future__ import annotations

import struct
from typing import Literal

import torch
import xxhash

# The bytes are as they were sealed, or they changed, or the sender sealed an empty message.
Found = Literal["sound", "corrupted", "void"]


def checksum(data: torch.Tensor) -> int:
    """XXH3 of a flat uint8 tensor in host memory."""
    return int(xxhash.xxh3_64_intdigest(data.numpy().data))


def word_sum(data: torch.Tensor) -> torch.Tensor:
    """The sum of the tensor's 64-bit words, on its device; its size is a multiple of 8 bytes."""
    return data.view(torch.int64).sum()


_SEAL = struct.Struct("<QQ")  # the checksum, and the kind: gathered or void
_GATHERED, _VOID = 0x5EA1ED, 0
SEAL_BYTES = _SEAL.size


def seal(message: torch.Tensor, *, void: bool = False) -> None:
    """Write the seal to a message's last bytes; a void message carries no frame."""
    if message.device.type != "cpu":
        seal_by_sum(message, void=void)
        return
    kind, of = (_VOID, 0) if void else (_GATHERED, checksum(message[:-SEAL_BYTES]))
    packed = bytearray(_SEAL.pack(of, kind))
    message[-SEAL_BYTES:].copy_(torch.frombuffer(packed, dtype=torch.uint8))


def inspect(message: torch.Tensor) -> Found:
    """Compare a message's bytes with its seal."""
    if message.device.type != "cpu":
        return inspect_by_sum(message)
    of, kind = _SEAL.unpack(bytes(message[-SEAL_BYTES:].numpy()))
    return _verdict(of, kind, checksum(message[:-SEAL_BYTES]) if kind == _GATHERED else 0)


def seal_by_sum(message: torch.Tensor, *, void: bool) -> None:
    """Seal on the message's device, without a wait: no number comes to the host."""
    end = message[-SEAL_BYTES:].view(torch.int64)
    end[1] = _VOID if void else _GATHERED
    if not void:
        end[0] = word_sum(message[:-SEAL_BYTES])


def inspect_by_sum(message: torch.Tensor) -> Found:
    """Compare a message's bytes with its seal on its device, with one wait for the device."""
    end = message[-SEAL_BYTES:].view(torch.int64)
    of, kind, found = torch.cat((end, word_sum(message[:-SEAL_BYTES]).view(1))).tolist()
    return _verdict(of, kind, found)


def _verdict(of: int, kind: int, found: int) -> Found:
    if kind == _VOID:
        return "void"
    return "sound" if kind == _GATHERED and of == found else "corrupted"
