"""Memory of the 8 B and the 32 B shape: weights, what is kept back, and what is left for KV."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import torch

from bench.gpu.bench_engine import DRY, bench_engine, kv_layout, operations
from bench.gpu.channel_peer import resident_bytes
from bench.gpu.model import FULL, GpuScale, decoder
from bench.gpu.section import Row
from engine.config import KvConfig
from engine.free_memory import free_bytes
from engine.kv.memory import block_bytes
from engine.memory.device_memory import release_unused
from engine.model.forward_selection import RecordedSteps
from engine.model.fused_forward import CompactRunner
from engine.runtime.pool_size import pool_blocks, reserved_bytes

# Qwen2.5 32B, in bfloat16.
LARGE = replace(FULL, hidden=5120, layers=64, heads=40, kv_heads=8, inner=27648, vocabulary=152_064)
_DRY_LARGE = replace(DRY, hidden=128, layers=4, heads=8, inner=192)
_GIB = 2**30


def run(device: torch.device, dry: bool) -> Iterator[Row]:
    """A row for each shape; on a CPU the memory of this process stands for that of the device."""
    bench_engine.cache_clear()
    shapes = {"8 B": DRY, "32 B": _DRY_LARGE} if dry else {"8 B": FULL, "32 B": LARGE}
    for name, scale in shapes.items():
        _release(device)
        yield {"shape": name, **_measured(scale, device)}


def _measured(scale: GpuScale, device: torch.device) -> Row:
    free = free_bytes(device)
    model = decoder(scale, device)
    runner = CompactRunner(model, operations(model, device))
    layout, context = kv_layout(scale), max(scale.contexts)
    kept = _kept(device)
    before = free_bytes(device)
    release_unused(device)
    after = free_bytes(device)
    recorded = RecordedSteps(runner, context, 256) if device.type == "cuda" else None
    reserved = reserved_bytes(runner, recorded, layout, device)
    most_tokens = 256 * context
    blocks = pool_blocks(layout, device, KvConfig(), most_tokens, 1, reserved)
    return {
        "weights_gib": (scale.step_bytes(0, 0) + _embedding_bytes(scale)) / _GIB,
        "taken_gib": (free - after) / _GIB,
        "resident_gib": _resident(device) / _GIB,
        "kept_back_gib": kept / _GIB,
        "given_back_gib": (after - before) / _GIB,
        **{f"reserved_{key.replace(' ', '_')}_gib": n / _GIB for key, n in reserved.items()},
        "blocks": blocks,
        "kv_gib": blocks * block_bytes(layout) / _GIB,
        "kv_tokens": blocks * layout.block_size,
    }


def _embedding_bytes(scale: GpuScale) -> int:
    return scale.vocabulary * scale.hidden * scale.dtype.itemsize


def _kept(device: torch.device) -> int:
    """Bytes that torch keeps and does not use."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def _resident(device: torch.device) -> int:
    """Bytes of the device in use by torch; of this process on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return resident_bytes()


def _release(device: torch.device) -> None:
    gc.collect()
    release_unused(device)
