"""The tensors behind the block numbers, and moving blocks in and out of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch

from engine.layout import KvLayout

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

# The order within a block of one layer. plain: [block_size, kv_heads, head_size]. pairs: by head,
# keys in pairs of dims for 16 tokens, values in pairs of tokens; see engine/kernels/cpu/pairs.h.
KvFormat = Literal["plain", "pairs"]


class KvCache:
    """Preallocated keys and values of `blocks` blocks, and a scratch block nobody owns.

    `layers[i]` is [2, blocks + 1, block_size, kv_heads, head_size]: keys at 0, values at 1. That is
    also the order of the numbers while `formats[i]` is plain; blocks always travel as plain ones.
    """

    def __init__(
        self, layout: KvLayout, blocks: int, device: torch.device, kv_format: KvFormat = "plain"
    ) -> None:
        self.layout = layout
        self.blocks = blocks
        self.scratch = blocks
        self.device = device
        self.dtype = TORCH_DTYPES[layout.dtype]
        self.formats: list[KvFormat] = [kv_format] * len(layout.layers)
        self.layers = [
            torch.zeros(
                (2, blocks + 1, layout.block_size, shape.kv_heads, shape.head_size),
                dtype=self.dtype,
                device=device,
            )
            for shape in layout.layers
        ]
        # Copies run beside the engine's steps, and a change of format must not meet one.
        self._copying = threading.Lock()

    def block_bytes(self, layer_start: int, layer_stop: int) -> int:
        """Bytes of one block over these layers."""
        return block_bytes(self.layout, layer_start, layer_stop)

    def gather(
        self, blocks: Sequence[int], layer_start: int, layer_stop: int, out: torch.Tensor
    ) -> None:
        """Copy blocks into `out` (uint8, exactly their bytes), layer by layer.

        Each layer is written as [2, len(blocks), block_size, kv_heads, head_size]. `out` may be on
        another device; when this returns the bytes are there.
        """
        index = torch.tensor(blocks, dtype=torch.long, device=self.device)
        with self._copying:
            for number, part in self._parts(len(blocks), layer_start, layer_stop, out):
                layer = self.layers[number]
                if self.formats[number] == "pairs":
                    torch.ops.tandem_cpu.gather_pairs(layer, index, part)
                elif out.device == self.device:
                    torch.index_select(layer, 1, index, out=part)
                else:
                    part.copy_(torch.index_select(layer, 1, index), non_blocking=True)
            self._synchronize()

    def scatter(
        self, blocks: Sequence[int], layer_start: int, layer_stop: int, data: torch.Tensor
    ) -> None:
        """Copy `data`, laid out as `gather` does, into blocks; when this returns it is there."""
        index = torch.tensor(blocks, dtype=torch.long, device=self.device)
        with self._copying:
            for number, part in self._parts(len(blocks), layer_start, layer_stop, data):
                layer = self.layers[number]
                if self.formats[number] == "pairs":
                    torch.ops.tandem_cpu.scatter_pairs(part, index, layer)
                elif self.device.type == "cpu":
                    # index_copy_ goes element by element: a fourth of the speed.
                    _as_bytes(layer)[:, index.numpy()] = _as_bytes(part)
                else:
                    layer.index_copy_(1, index, part.to(self.device, non_blocking=True))
            self._synchronize()

    def pair(self, number: int) -> None:
        """Bring a layer's blocks from the plain order into pairs."""
        layer = self.layers[number]
        with self._copying:
            if self.formats[number] == "plain":
                index = torch.arange(self.blocks)
                torch.ops.tandem_cpu.scatter_pairs(layer[:, :-1].clone(), index, layer)
                self.formats[number] = "pairs"

    def clear(self, blocks: Sequence[int]) -> None:
        """Overwrite blocks with zeros."""
        for layer in self.layers:
            layer[:, list(blocks)] = 0

    def _parts(
        self, count: int, layer_start: int, layer_stop: int, buffer: torch.Tensor
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Pair each layer's number with its typed view of the flat buffer."""
        expected = count * self.block_bytes(layer_start, layer_stop)
        if buffer.dtype != torch.uint8 or buffer.numel() != expected:
            raise ValueError(f"buffer must be {expected} bytes, is {buffer.numel()} {buffer.dtype}")
        offset = 0
        for number in range(layer_start, layer_stop):
            size = count * self.block_bytes(number, number + 1)
            view = buffer[offset : offset + size].view(self.dtype)
            yield number, view.view(2, count, *self.layers[number].shape[2:])
            offset += size

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()


def _as_bytes(blocks: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Blocks in host memory as [2, blocks, bytes]."""
    return blocks.view(torch.uint8).flatten(2).numpy()


def block_bytes(layout: KvLayout, layer_start: int = 0, layer_stop: int | None = None) -> int:
    """Bytes of one block of that layout over these layers (all by default)."""
    itemsize = TORCH_DTYPES[layout.dtype].itemsize
    per_token = sum(
        2 * shape.kv_heads * shape.head_size for shape in layout.layers[layer_start:layer_stop]
    )
    return per_token * layout.block_size * itemsize
