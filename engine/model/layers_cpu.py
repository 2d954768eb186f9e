"""Layers on a CPU in bfloat16: C++ over paired blocks and panels of weights, a step in one call."""

from __future__ import annotations

import torch

from engine import kernels
from engine.cpu.huge_pages import HugePages
from engine.kv.cache import KvFormat
from engine.model.fused_weights import Decoder, Layer, Linear
from engine.model.packed_batch import PackedBatch

Tensor = torch.Tensor

_LANES = 16
_MOST_HEAD_SIZE = 256


def why_not(decoder: Decoder, block_size: int) -> str | None:
    """The reason if these operations cannot serve the model, else None."""
    if any(layer.experts is not None for layer in decoder.layers):
        return "there are no C++ operations for experts"
    if any(layer.sinks is not None for layer in decoder.layers):
        return "there are no C++ operations for attention sinks"
    sizes = {
        "hidden size": decoder.embedding.shape[1],
        "intermediate size": decoder.layers[0].down.weight.shape[1],
        "block size": block_size,
    }
    for name, size in sizes.items():
        if size % _LANES:
            return f"the {name}, {size}, is no multiple of {_LANES}"
    if decoder.head_size % (2 * _LANES) or decoder.head_size > _MOST_HEAD_SIZE:
        return f"heads of {decoder.head_size} are not supported"
    return None


class CpuLayers:
    """See engine.model.fused_forward.Layers. The operations of `build` must have been loaded.

    Weights are packed into panels, and the plain weights are freed.
    """

    name = "C++ operations"
    kv_format: KvFormat = "pairs"

    def __init__(self, decoder: Decoder, build: kernels.Build = kernels.NATIVE) -> None:
        self._decoder = decoder
        self._absent = decoder.embedding.new_empty(0)
        self._pages = HugePages()
        ops = getattr(torch.ops, build.library)
        # An operation's only overload: looking it up at each call would cost microseconds.
        self._layers = ops.layers.default
        self._head = ops.head.default
        self._pack = ops.pack_panels.default

    def prepare(self, layer: Layer) -> tuple[list[Tensor], int]:
        """The parts in the order that operations.cpp names, and the window."""
        linears = (layer.qkv, layer.out, layer.gate_up, layer.down)
        optional = (layer.post_attention, layer.post_mlp, layer.query_norm, layer.key_norm)
        parts = [
            layer.input_norm,
            layer.mlp_norm,
            *map(self._or_absent, optional),
            layer.rotary.cosine,
            layer.rotary.sine,
            *(self._packed(linear, gated=linear is layer.gate_up) for linear in linears),
            *(self._or_absent(linear.bias) for linear in linears),
        ]
        return parts, layer.window or 0

    def prepare_head(self) -> tuple[Tensor, Tensor, int]:
        """Panels, bias and vocabulary."""
        head = self._decoder.head
        vocabulary = len(head.weight)
        return self._packed(head, gated=False), self._or_absent(head.bias), vocabulary

    def run(
        self,
        x: Tensor,
        layers: list[tuple[list[Tensor], int]],
        stores: list[Tensor],
        batch: PackedBatch,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """See Layers."""
        decoder, beside = self._decoder, batch.beside()
        out: Tensor = self._layers(
            x,
            [part for parts, _ in layers for part in parts],
            [window for _, window in layers],
            stores,
            batch.positions,
            batch.slots,
            batch.tables,
            batch.starts,
            batch.firsts,
            batch.halted,
            wanted,
            beside.steps,
            beside.since_s,
            beside.cores,
            decoder.heads,
            decoder.scaling,
            decoder.softcap or 0.0,
            decoder.eps,
            decoder.norm_offset,
            decoder.gelu,
        )
        return out

    def logits(self, x: Tensor, head: tuple[Tensor, Tensor, int]) -> Tensor:
        """See Layers."""
        decoder, (panels, bias, vocabulary) = self._decoder, head
        norm, eps, offset = decoder.final_norm, decoder.eps, decoder.norm_offset
        out: Tensor = self._head(x, norm, panels, bias, vocabulary, eps, offset)
        return out

    def _packed(self, linear: Linear, *, gated: bool) -> Tensor:
        packed = self._pages.keep(self._pack(linear.weight.contiguous(), gated))
        linear.weight = self._absent
        return packed

    def _or_absent(self, tensor: Tensor | None) -> Tensor:
        return self._absent if tensor is None else tensor
