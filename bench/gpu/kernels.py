"""Single operations of the 8 B shape against their floors, beside alternatives.

Each run goes over all layers, so that the last run leaves none of its data in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from bench.gpu.harness import GpuBench
from bench.gpu.model import packed
from bench.gpu.varlen_attention import VarlenPrefill
from engine.errors import first_line
from engine.model.attention_hf import attend_segments
from engine.model.attention_triton import PagedAttention, Tiles, TritonAttention
from engine.model.ops_cuda import TritonOps, processors
from engine.model.packed_batch import PackedBatch
from engine.model.trials.device_timer import device_seconds

Tensor = torch.Tensor

# Rows by keys, warps, depth; and how often keys are split (None: as chosen).
_DECODE_VARIANTS: tuple[tuple[Tiles, int | None], ...] = (
    (Tiles(16, 128, 4, 2), None),
    (Tiles(16, 128, 4, 4), None),
    (Tiles(16, 128, 8, 3), None),
    (Tiles(16, 64, 4, 3), None),
    (Tiles(16, 64, 4, 5), None),
    (Tiles(16, 128, 4, 3), 1),
    (Tiles(16, 128, 4, 3), 2),
    (Tiles(16, 128, 4, 3), 4),
    (Tiles(16, 128, 4, 3), 16),
)
_PREFILL_VARIANTS = (
    Tiles(128, 64, 4, 2),
    Tiles(128, 64, 8, 3),
    Tiles(128, 128, 8, 2),
    Tiles(64, 64, 4, 3),
)


class TorchAttention:
    """Gather and scaled_dot_product_attention, as TorchOps attends."""

    name = "torch, gathered"

    def __call__(
        self,
        query: Tensor,
        store: Tensor,
        batch: PackedBatch,
        *,
        scaling: float,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See PagedAttention."""
        return attend_segments(
            query, store, batch, scaling=scaling, window=window, softcap=softcap, sinks=sinks
        )


def _seconds(
    bench: GpuBench, attention: PagedAttention, batch: PackedBatch, *, recorded: bool
) -> float:
    """Seconds of one layer's attention, recorded as a graph so that launches do not count."""
    scale = bench.scale
    tokens = len(batch.tokens)
    query = torch.randn(tokens, scale.heads, scale.size, device=bench.device).to(scale.dtype)

    def run() -> Tensor:
        for layer in bench.cache.layers:
            out = attention(
                query, layer, batch, scaling=scale.size**-0.5, window=None, softcap=None
            )
        return out

    step = bench.recorder()(run) if recorded else run
    return device_seconds(step, bench.device, scale.repeats) / scale.layers


def _decoders(bench: GpuBench) -> Iterator[tuple[str, PagedAttention]]:
    yield "torch, gathered", TorchAttention()
    if isinstance(bench.ops, TritonOps):
        count = processors(bench.device)
        yield "as chosen", TritonAttention(count)
        for tiles, parts in _DECODE_VARIANTS:
            yield f"{tiles} parts={parts}", TritonAttention(count, decoding=tiles, parts=parts)


def attention_decode(bench: GpuBench) -> None:
    """Measure decode attention. Its floor is reading keys and values."""
    scale = bench.scale
    for batch in scale.batches:
        for context in scale.contexts:
            step = packed(batch, context, 1, bench.cache)
            floor = scale.kv_numbers(batch, context) * scale.dtype.itemsize / bench.read
            for name, attention in _decoders(bench):
                if bench.report.is_late:
                    return
                _attention_row(bench, "decode attention", name, attention, step, floor)


def attention_prefill(bench: GpuBench) -> None:
    """Measure prefill attention. Its floor is the two matrix products."""
    scale = bench.scale
    for prompt in scale.prompts:
        step = packed(1, prompt, prompt, bench.cache)
        floor = scale.attention_flops(prompt) / bench.rate
        ways: list[tuple[str, PagedAttention]] = [("torch, gathered", TorchAttention())]
        if isinstance(bench.ops, TritonOps):
            count = processors(bench.device)
            ways = [("as chosen", TritonAttention(count))]
            ways += [(str(t), TritonAttention(count, prefilling=t)) for t in _PREFILL_VARIANTS]
            if bench.device.type == "cuda":
                ways.append(("torch's varlen", VarlenPrefill(count)))
        for name, attention in ways:
            if bench.report.is_late:
                return
            _attention_row(bench, "prefill attention", name, attention, step, floor)


def _attention_row(
    bench: GpuBench,
    section: str,
    name: str,
    attention: PagedAttention,
    step: PackedBatch,
    floor: float,
) -> None:
    """Measure one variant; a failure, for example too much shared memory, is printed."""
    queries, reach = len(step.tokens), step.tables.shape[1] * bench.cache.layout.block_size
    where = {"way": name, "spans": len(step.tables), "queries": queries, "keys": reach}
    recorded = section.startswith("decode")
    try:
        taken = _seconds(bench, attention, step, recorded=recorded)
    except Exception as error:
        bench.report.row(section, **where, error=first_line(error)[:200])
        return
    bench.report.row(section, **where, us=taken * 1e6, of_floor=floor / taken)


def products(bench: GpuBench) -> None:
    """Measure the linear layers at the batch sizes of decode steps."""
    scale = bench.scale
    for name in ("qkv", "out", "gate_up", "down", "head"):
        layers = bench.decoder.layers
        linears = [bench.decoder.head] if name == "head" else [getattr(x, name) for x in layers]
        ready = [bench.ops.apply(linear) for linear in linears]
        read = sum(linear.weight.nbytes for linear in linears)
        for rows in scale.batches:
            if bench.report.is_late:
                return
            x = torch.randn(rows, linears[0].weight.shape[1], device=bench.device).to(scale.dtype)
            run = bench.recorder()(lambda ready=ready, x=x: [apply(x) for apply in ready][-1])  # type: ignore[misc]
            taken = device_seconds(run, bench.device, scale.repeats)
            us = taken * 1e6 / len(linears)
            floor = read / bench.read
            bench.report.row("products", linear=name, rows=rows, us=us, of_floor=floor / taken)


def fused(bench: GpuBench) -> None:
    """Measure the fused operations of a prompt: bytes moved against the bandwidth."""
    scale, ops = bench.scale, bench.ops
    rows = max(scale.prompts)
    layer, weight = bench.decoder.layers[0], bench.decoder.final_norm
    batch = packed(1, rows, rows, bench.cache)
    x, branch = torch.randn(2, rows, scale.hidden, device=bench.device).to(scale.dtype)
    wide = (scale.heads + 2 * scale.kv_heads) * scale.size
    qkv = torch.randn(rows, wide, device=bench.device).to(scale.dtype)
    gate_up = torch.randn(rows, 2 * scale.inner, device=bench.device).to(scale.dtype)
    ways: dict[str, tuple[Callable[[], object], int]] = {
        "add and norm": (lambda: ops.add_norm(x, branch, weight), 4 * x.numel()),
        "gate": (lambda: ops.gate(gate_up), gate_up.numel() * 3 // 2),
    }
    if isinstance(ops, TritonOps):
        store = bench.cache.layers[0]
        ways["rotary and store"] = lambda: ops._rotated(qkv, layer, store, batch), 2 * qkv.numel()
    for name, (run, numbers) in ways.items():
        taken = device_seconds(run, bench.device, scale.repeats)
        floor = numbers * scale.dtype.itemsize / bench.read
        bench.report.row("fused", operation=name, rows=rows, us=taken * 1e6, of_floor=floor / taken)
