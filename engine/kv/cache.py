"""The tensors of the KV blocks, and copies of blocks to and from them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch

from engine.device import CudaMark, DeviceMark
from engine.kv.layout import KvLayout
from engine.kv.memory import MOVED_AS, TORCH_DTYPES, block_bytes, memory_for, stacks_in

# The order within a block of one layer. plain: [block_size, kv_heads, head_size]. pairs: by head,
# keys in pairs of dims for 16 tokens, values in pairs of tokens; see engine/kernels/cpu/pairs.h.
KvFormat = Literal["plain", "pairs"]


class KvCache:
    """Preallocated keys and values of `blocks` blocks, and a scratch block without an owner.

    `layers[i]` is [2, blocks + 1, block_size, kv_heads, head_size]: keys at 0, values at 1. That is
    also the order of the numbers while `formats[i]` is plain. Blocks travel in the plain order,
    unless they are copied from cache to cache.
    """

    def __init__(
        self, layout: KvLayout, blocks: int, device: torch.device, kv_format: KvFormat = "plain"
    ) -> None:
        self.layout = layout
        self.blocks = blocks
        self.scratch = blocks
        # With its number, so that it equals the device of tensors on it.
        self.device = torch.empty(0, device=device).device
        self.dtype = TORCH_DTYPES[layout.dtype]
        self.formats: list[KvFormat] = [kv_format] * len(layout.layers)
        self.memory = memory_for(layout, blocks + 1, self.device)
        self._stacks = stacks_in(self.memory, layout, blocks + 1)
        sizes = enumerate(len(stack) for stack in self._stacks)
        # Each layer's stack, and its index there.
        self._stacked = [(stack, index) for stack, size in sizes for index in range(size)]
        self.layers = [layer.view(self.dtype) for stack in self._stacks for layer in stack]
        # Copies run beside the engine's steps; no copy may run during a change of format.
        self._copying = threading.Lock()

    @property
    def launches(self) -> bool:
        """Whether work on the tensors is launched, and done only after `synchronize`."""
        return self.device.type != "cpu"

    def block_bytes(self, layer_start: int, layer_stop: int) -> int:
        """Bytes of one block over these layers."""
        return block_bytes(self.layout, layer_start, layer_stop)

    def gather(
        self, blocks: Sequence[int], layer_start: int, layer_stop: int, out: torch.Tensor
    ) -> None:
        """Copy blocks into `out` (uint8, exactly their bytes), layer by layer.

        Each layer is written as [2, len(blocks), block_size, kv_heads, head_size]. `out` may be on
        another device. When this returns no copy is under way.
        """
        index = self._index(blocks)
        with self._copies():
            for first, stop, part in self._parts(len(blocks), layer_start, layer_stop, out):
                layers = self._together(first, stop)
                if self.formats[first] == "pairs":
                    torch.ops.tandem_cpu.gather_pairs(self.layers[first], index, part[0])
                elif self.device.type == "cpu":
                    # Faster than index_select by a quarter; take clips an index out of range.
                    np.take(_as_bytes(layers), index.numpy(), 1, _as_bytes(part), mode="clip")
                elif out.device == self.device:
                    torch.index_select(layers, 1, index, out=part)
                else:
                    part.copy_(torch.index_select(layers, 1, index), non_blocking=True)

    def scatter(
        self, blocks: Sequence[int], layer_start: int, layer_stop: int, data: torch.Tensor
    ) -> None:
        """Copy `data`, in the order of `gather`, into blocks; when this returns it is there."""
        index = self._index(blocks)
        with self._copies():
            for first, stop, part in self._parts(len(blocks), layer_start, layer_stop, data):
                layers = self._together(first, stop)
                if self.formats[first] == "pairs":
                    torch.ops.tandem_cpu.scatter_pairs(part[0], index, self.layers[first])
                elif self.device.type == "cpu":
                    # index_copy_ copies element by element, at a fourth of the speed.
                    _as_items(layers)[:, index.numpy()] = _as_items(part)
                else:
                    layers.index_copy_(1, index, part.to(self.device, non_blocking=True))

    @property
    def in_pairs(self) -> bool:
        """Whether all layers are in pairs, and will be to the end."""
        return all(kv_format == "pairs" for kv_format in self.formats)

    def copy_pairs(
        self,
        stacks: Sequence[torch.Tensor],
        sources: Sequence[int],
        blocks: Sequence[int],
        layers: range,
    ) -> None:
        """Copy blocks `sources` of another cache of this layout into own blocks.

        `stacks` is the memory of the other cache, in pairs like this one.
        """
        read, written = torch.tensor(sources), self._index(blocks)
        first = layers.start
        while first < layers.stop:
            stack, index = self._stacked[first]
            end = min(index + layers.stop - first, len(self._stacks[stack]))
            theirs, mine = stacks[stack][index:end], self._stacks[stack][index:end]
            torch.ops.tandem_cpu.copy_blocks(theirs, read, mine, written)
            first += end - index

    def pair(self, number: int) -> None:
        """Bring a layer's blocks from the plain order into pairs."""
        layer = self.layers[number]
        with self._copying:
            if self.formats[number] == "plain":
                index = torch.arange(self.blocks)
                torch.ops.tandem_cpu.scatter_pairs(layer[:, :-1].clone(), index, layer)
                self.formats[number] = "pairs"

    def clear(self, blocks: Sequence[int]) -> None:
        """Overwrite blocks with zeros; when this returns they are zero."""
        for stack in self._stacks:
            stack[:, :, list(blocks)] = 0
        self.synchronize()

    def synchronize(self) -> None:
        """Wait until all work that this thread launched is done; on a CPU it always is."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def mark(self) -> DeviceMark:
        """A mark behind all work that this thread launched, where work is launched."""
        return CudaMark(self.device)

    @contextmanager
    def _copies(self) -> Iterator[None]:
        """Keep copies separate from changes of format; no copy is under way at the end."""
        with self._copying:
            try:
                yield
            finally:
                self.synchronize()

    def _index(self, blocks: Sequence[int]) -> torch.Tensor:
        if not 0 <= min(blocks, default=0) <= max(blocks, default=0) <= self.blocks:
            raise IndexError(f"blocks {min(blocks)} to {max(blocks)}, of {self.blocks}")
        return torch.tensor(blocks, dtype=torch.long, device=self.device)

    def _together(self, first: int, stop: int) -> torch.Tensor:
        """Layers of one stack as [layers * 2, blocks + 1, block_size, kv_heads, head_size]."""
        stack, index = self._stacked[first]
        return self._stacks[stack][index : index + stop - first].flatten(0, 1)

    def _parts(
        self, count: int, layer_start: int, layer_stop: int, buffer: torch.Tensor
    ) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Layers that can be copied in one call (from, to), and their typed view of the buffer.

        The view is [layers * 2, count, block_size, kv_heads, head_size]; one layer in pairs has it
        as [1, 2, count, …].
        """
        expected = count * self.block_bytes(layer_start, layer_stop)
        if buffer.dtype != torch.uint8 or buffer.numel() != expected:
            raise ValueError(f"buffer must be {expected} bytes, is {buffer.numel()} {buffer.dtype}")
        offset, first = 0, layer_start
        while first < layer_stop:
            in_pairs, stop = self.formats[first] == "pairs", first + 1
            while not in_pairs and stop < layer_stop and self._goes_on(stop):
                stop += 1
            size = count * self.block_bytes(first, stop)
            view = buffer[offset : offset + size].view(MOVED_AS.get(self.dtype, self.dtype))
            shape = (count, *self.layers[first].shape[2:])
            yield first, stop, view.view(1, 2, *shape) if in_pairs else view.view(-1, *shape)
            offset, first = offset + size, stop

    def _goes_on(self, number: int) -> bool:
        """Whether a copy of the layer before can include this layer."""
        same = self._stacked[number][0] == self._stacked[number - 1][0]
        return same and self.formats[number] == "plain"


def _as_bytes(blocks: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Blocks in host memory as [rows, blocks, bytes]."""
    return blocks.view(torch.uint8).flatten(2).numpy()


def _as_items(blocks: torch.Tensor) -> np.ndarray[Any, np.dtype[np.void]]:
    """Blocks in host memory as [rows, blocks], each one item that is copied as it is."""
    data = _as_bytes(blocks)
    return data.view(f"V{data.shape[2]}")[..., 0]
