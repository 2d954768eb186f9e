"""The header of a safetensors file: names, types, shapes and places of its tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

from engine.errors import UnsupportedModel

# A bound of the format: the bytes of a header.
_MOST_HEADER_BYTES = 100_000_000


def read_header(file: BinaryIO, path: Path) -> tuple[bytes, dict[str, Any], int]:
    """The header as bytes and by tensor, and where the data begins; UnsupportedModel if it is bad.

    The file begins with the header's length as 8 little-endian bytes, then the header as JSON
    (the safetensors format). `file` is left behind the header.
    """
    length = int.from_bytes(file.read(8), "little")
    try:
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"{length} bytes of header")
        header = file.read(length)
        entries: dict[str, Any] = json.loads(header)
    except ValueError as error:
        raise UnsupportedModel(f"{path.name} is no safetensors file: {error}") from error
    return header, {n: e for n, e in entries.items() if "data_offsets" in e}, 8 + length
