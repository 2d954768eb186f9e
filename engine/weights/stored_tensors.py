"""The tensors in the safetensors files of a model folder, and copying them out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch

from engine.errors import UnsupportedModel
from engine.safetensors_header import read_header

Tensor = torch.Tensor

# Bound: the bytes of host memory through which weights pass on their way to a device.
BUFFER_BYTES = 64 << 20
# The names of the format, for the types that weights are read from.
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: its type, its shape, and the byte at which it begins."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """The bytes that it takes in its file."""
        return prod(self.shape) * self.dtype.itemsize


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of model.safetensors, or else of the files that its index names, by name.

    Tensors of types that no weights have are left out. Empty where there is neither file.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return _tensors_in(single)
    if not index.is_file():
        return {}
    found: dict[str, StoredTensor] = {}
    places: dict[str, str] = json.loads(index.read_text())["weight_map"]
    for name in sorted(set(places.values())):
        if Path(name).name != name or not (folder / name).is_file():
            raise UnsupportedModel(f"{index.name} names {name}, which is not in {folder.name}")
        found |= {key: one for key, one in _tensors_in(folder / name).items() if key in places}
    return found


def _tensors_in(path: Path) -> dict[str, StoredTensor]:
    with path.open("rb") as file:
        _, entries, begin = read_header(file, path)
    size = path.stat().st_size
    found = {}
    for name, entry in entries.items():
        dtype, shape = _DTYPES.get(entry["dtype"]), tuple(entry["shape"])
        if dtype is None:
            continue
        first, end = entry["data_offsets"]
        if end - first != prod(shape) * dtype.itemsize or begin + end > size:
            raise UnsupportedModel(f"{path.name} is cut short or damaged at {name}")
        found[name] = StoredTensor(path, dtype, shape, begin + first)
    return found


class TensorReader:
    """Copies stored tensors to a device, through one small buffer of host memory.

    A tensor for the CPU that is stored in its own type is read into its place. `on_read` gets the
    bytes of each reading, at most BUFFER_BYTES.
    """

    def __init__(
        self, device: torch.device, on_read: Callable[[int], object] = lambda _: None
    ) -> None:
        self._on_read = on_read
        pinned = device.type == "cuda"
        self._buffer = torch.empty(BUFFER_BYTES, dtype=torch.uint8, pin_memory=pinned)

    def read(self, wanted: Iterable[tuple[StoredTensor, Tensor]]) -> None:
        """Fill each tensor, which is contiguous and has the stored shape, in order of the files."""
        by_place = sorted(wanted, key=lambda pair: (pair[0].path, pair[0].offset))
        path: Path | None = None
        file: BinaryIO | None = None
        try:
            for stored, target in by_place:
                if file is None or stored.path != path:
                    if file is not None:
                        file.close()
                    path, file = stored.path, stored.path.open("rb", buffering=0)
                file.seek(stored.offset)
                self._copy(file, stored, target.view(-1))
        finally:
            if file is not None:
                file.close()

    def _copy(self, file: Any, stored: StoredTensor, target: Tensor) -> None:
        if target.device.type == "cpu" and target.dtype == stored.dtype:
            self._fill(file, target.view(torch.uint8), stored)
            return
        size = stored.dtype.itemsize
        step = BUFFER_BYTES // size
        for begin in range(0, target.numel(), step):
            part = target[begin : begin + step]
            read = self._buffer[: part.numel() * size]
            self._fill(file, read, stored)
            # Not asynchronous: the buffer is written again at once.
            part.copy_(read.view(stored.dtype))

    def _fill(self, file: Any, data: Tensor, stored: StoredTensor) -> None:
        view = memoryview(data.numpy().data)
        while view:
            count = file.readinto(view[:BUFFER_BYTES])
            if not count:
                raise UnsupportedModel(f"{stored.path.name} ended early")
            view = view[count:]
            self._on_read(count)
