"""The memory of a KV cache, and its division into layers, here and where it is mapped."""

from __future__ import annotations

import logging
from itertools import groupby

import torch

from engine.kv.layout import KvLayout
from engine.kv.shared_segments import shared_tensor

log = logging.getLogger(__name__)

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
}
# Blocks are copied as bytes where a device may lack copies of their type.
MOVED_AS = {torch.float8_e4m3fn: torch.uint8}


def block_bytes(layout: KvLayout, layer_start: int = 0, layer_stop: int | None = None) -> int:
    """Bytes of one block of that layout over these layers (all by default)."""
    before = layout.numbers_before
    per_token = (
        before[len(layout.layers) if layer_stop is None else layer_stop] - before[layer_start]
    )
    return per_token * layout.block_size * TORCH_DTYPES[layout.dtype].itemsize


def memory_for(layout: KvLayout, blocks: int, device: torch.device) -> torch.Tensor:
    """Zeros for so many blocks, flat uint8; on a CPU another process can read the memory."""
    size = blocks * block_bytes(layout)
    if device.type == "cpu":
        try:
            # Written now: a page costs four times as much when a step is the first to write it.
            return shared_tensor(size).zero_()
        except OSError as error:
            log.info("other processes on this host cannot borrow KV: %s", error)
    return torch.zeros(size, dtype=torch.uint8, device=device)


def stacks_in(memory: torch.Tensor, layout: KvLayout, blocks: int) -> list[torch.Tensor]:
    """Neighbouring layers of one shape, [layers, 2, blocks, block_size, kv_heads, head_size] each.

    In the type that blocks are moved as.

    A copy over a stack is one call. Many short calls on another thread would keep the
    interpreter's lock from the event loop.
    """
    stacks: list[torch.Tensor] = []
    offset, first, dtype = 0, 0, TORCH_DTYPES[layout.dtype]
    for shape, alike in groupby(layout.layers):
        count = len(list(alike))
        size = blocks * block_bytes(layout, first, first + count)
        stack = memory[offset : offset + size].view(MOVED_AS.get(dtype, dtype))
        shape_of_kv = (blocks, layout.block_size, shape.kv_heads, shape.head_size)
        stacks.append(stack.view(count, 2, *shape_of_kv))
        offset, first = offset + size, first + count
    return stacks
