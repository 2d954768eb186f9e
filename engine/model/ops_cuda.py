"""The operations of a layer on a CUDA device: fused Triton kernels, cuBLAS for the products."""

from __future__ import annotations

import importlib.util
from functools import partial

import torch
from torch.nn.functional import linear

from engine.errors import UnsupportedModel
from engine.fp8.product import fp8_product
from engine.model.attention_flashinfer import FlashInferAttention
from engine.model.attention_triton import PagedAttention, TritonAttention, power_of_two
from engine.model.experts.grouped_product import why_not_recorded
from engine.model.experts.routing import ClampedGate
from engine.model.fused_weights import Decoder, Layer, Linear
from engine.model.layers_op_by_op import Apply, OpByOp
from engine.model.packed_batch import PackedBatch

Tensor = torch.Tensor

# Bounds of the kernels.
_MOST_HEAD_SIZE = 256
_MOST_GROUP = 64
_MOST_HIDDEN = 32768
# Tuned: dims that a program of the gate kernel computes.
_GATE_DIMS = 1024
# Tuned: from so many tokens on a program takes a whole tile of heads instead of a few.
_MANY_TOKENS = 256


def why_not(decoder: Decoder) -> str | None:
    """The reason if these operations cannot serve the model, else None."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if decoder.head_size % 2 or decoder.head_size > _MOST_HEAD_SIZE:
        return f"heads of {decoder.head_size} are not supported"
    if decoder.heads // decoder.kv_heads > _MOST_GROUP:
        return f"more than {_MOST_GROUP} heads share a KV head"
    if decoder.embedding.shape[1] > _MOST_HIDDEN:
        return f"a hidden size above {_MOST_HIDDEN} is not supported"
    return None


class TritonOps(OpByOp):
    """See OpByOp. Rounds once where `transformers` may round twice.

    `attention` attends to blocks; without it Triton's own kernels do.
    """

    def __init__(self, decoder: Decoder, attention: PagedAttention | None = None) -> None:
        from engine.kernels import fused_triton

        super().__init__(decoder)
        device = decoder.embedding.device
        self._kernels = fused_triton
        self._attention = attention or TritonAttention(processors(device))
        self.name = f"Triton operations, {self._attention.name}"
        self.not_recorded = self._why_not_recorded()

    def _why_not_recorded(self) -> str | None:
        """Why steps cannot be recorded, or None."""
        if not isinstance(self._attention, TritonAttention):
            return f"{self._attention.name} plans each batch on the host"
        stacks = (one.gate_up.weight for one in self._decoder.layers if one.experts is not None)
        return next(filter(None, map(why_not_recorded, stacks)), None)

    def apply(self, weights: Linear) -> Apply:
        """The weights as they are."""
        if weights.scales is not None:
            return fp8_product(weights.weight, weights.scales, weights.bias, by_triton=True)
        return partial(linear, weight=weights.weight, bias=weights.bias)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """See OpByOp."""
        return self._norm(x.contiguous(), None, weight)

    def add_norm(self, residual: Tensor, branch: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """See OpByOp; adds in place."""
        return residual, self._norm(residual, branch, weight)

    def _norm(self, x: Tensor, branch: Tensor | None, weight: Tensor) -> Tensor:
        out = torch.empty_like(x)
        width = x.shape[1]
        if len(x):
            self._kernels.add_rms_norm[(len(x),)](
                x if branch is None else branch,
                x,
                weight,
                out,
                self._decoder.eps,
                self._decoder.norm_offset,
                WIDTH=width,
                DIMS=power_of_two(width),
                ADDS=branch is not None,
                num_warps=min(16, max(1, power_of_two(width) // 512)),
            )
        return out

    def attend(self, qkv: Tensor, layer: Layer, store: Tensor, batch: PackedBatch) -> Tensor:
        """See OpByOp."""
        decoder = self._decoder
        query = self._rotated(qkv, layer, store, batch)
        out = self._attention(
            query,
            store,
            batch,
            scaling=decoder.scaling,
            window=layer.window,
            softcap=decoder.softcap,
            sinks=layer.sinks,
        )
        return out.flatten(1)

    def _rotated(self, qkv: Tensor, layer: Layer, store: Tensor, batch: PackedBatch) -> Tensor:
        """Keys and values into their blocks; the queries [tokens, heads, head_size]."""
        decoder = self._decoder
        tokens = len(qkv)
        query = qkv.new_empty(tokens, decoder.heads, decoder.head_size)
        normed = layer.query_norm is not None
        every = decoder.heads + 2 * decoder.kv_heads
        take = 16 if tokens >= _MANY_TOKENS else 2
        self._kernels.rope_store[(tokens, -(-every // take))](
            qkv,
            layer.rotary.cosine,
            layer.rotary.sine,
            batch.positions,
            batch.slots,
            layer.query_norm if normed else qkv,
            layer.key_norm if normed else qkv,
            query,
            store,
            store.stride(0),
            decoder.eps,
            decoder.norm_offset,
            HEADS=decoder.heads,
            KV=decoder.kv_heads,
            SIZE=decoder.head_size,
            DIMS=power_of_two(decoder.head_size),
            HALF=layer.rotary.cosine.shape[1],
            TAKE=take,
            NORMED=normed,
            num_warps=4 if take == 16 else 1,
        )
        return query

    def gate(self, gate_up: Tensor) -> Tensor:
        """See OpByOp."""
        rows, width = len(gate_up), gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, width)
        self._kernels.gate[(rows, -(-width // _GATE_DIMS))](
            gate_up, out, WIDTH=width, DIMS=_GATE_DIMS, GELU=self._decoder.gelu, num_warps=4
        )
        return out

    def clamped_gate(
        self, gate_up: Tensor, bias: Tensor | None, experts: Tensor, gate: ClampedGate
    ) -> Tensor:
        """See OpByOp."""
        rows, width = len(gate_up), gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, width)
        self._kernels.clamped_gate[(rows, -(-width // _GATE_DIMS))](
            gate_up,
            gate_up if bias is None else bias,
            experts,
            out,
            gate.alpha,
            gate.limit,
            WIDTH=width,
            DIMS=_GATE_DIMS,
            BIASED=bias is not None,
            num_warps=4,
        )
        return out


def attention_named(operations: str, decoder: Decoder) -> PagedAttention | None:
    """The attention that `model.operations` names; None for Triton's own."""
    if operations != "flashinfer":
        return None
    if any(layer.sinks is not None for layer in decoder.layers):
        raise UnsupportedModel("model.operations: flashinfer: not for attention sinks")
    if importlib.util.find_spec("flashinfer") is None:
        raise UnsupportedModel("model.operations: flashinfer: it is not installed")
    return FlashInferAttention(decoder.embedding.device)


def processors(device: torch.device) -> int:
    """Streaming multiprocessors of the device; 1 where there is none, as in the interpreter."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
