"""The operations of a layer in plain torch: every device and precision."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.functional import gelu, linear, silu

from engine.fp8.product import Fp8Products
from engine.model.attention_hf import attend_segments, write_slots
from engine.model.experts.routing import ClampedGate
from engine.model.fused_weights import Decoder, Layer, Linear, Rotary
from engine.model.layers_op_by_op import Apply, OpByOp
from engine.model.packed_batch import PackedBatch

Tensor = torch.Tensor


class TorchOps(OpByOp):
    """See OpByOp. Rounds where `transformers` does."""

    name = "torch operations"

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(decoder)
        self._fp8 = Fp8Products(by_triton=False)

    def apply(self, weights: Linear) -> Apply:
        """The weights as they are."""
        if weights.scales is not None:
            dtype = self._decoder.embedding.dtype
            return self._fp8.of(weights.weight, weights.scales, weights.bias, dtype)
        return partial(linear, weight=weights.weight, bias=weights.bias)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMS norm in float32; Gemma's and gpt-oss' multiply before they round, others after."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._decoder.eps)
        if self._decoder.norm_offset or self._decoder.wide_norms:
            return (wide * (weight.float() + self._decoder.norm_offset)).to(x.dtype)
        return weight * wide.to(x.dtype)

    def add_norm(self, residual: Tensor, branch: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """See OpByOp."""
        total = residual + branch
        return total, self.norm(total, weight)

    def attend(self, qkv: Tensor, layer: Layer, store: Tensor, batch: PackedBatch) -> Tensor:
        """See OpByOp."""
        decoder = self._decoder
        heads = decoder.heads + 2 * decoder.kv_heads
        query, key, value = qkv.view(-1, heads, decoder.head_size).split(
            [decoder.heads, decoder.kv_heads, decoder.kv_heads], dim=1
        )
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = self.norm(query, layer.query_norm), self.norm(key, layer.key_norm)
        query = _rotated(query, layer.rotary, batch.positions)
        key = _rotated(key, layer.rotary, batch.positions)
        write_slots(store, batch.slots, key, value)
        out = attend_segments(
            query,
            store,
            batch,
            scaling=decoder.scaling,
            window=layer.window,
            softcap=decoder.softcap,
            sinks=layer.sinks,
        )
        return out.flatten(1)

    def gate(self, gate_up: Tensor) -> Tensor:
        """See OpByOp."""
        gate, up = gate_up.chunk(2, dim=-1)
        return (gelu(gate, approximate="tanh") if self._decoder.gelu else silu(gate)) * up

    def clamped_gate(
        self, gate_up: Tensor, bias: Tensor | None, experts: Tensor, gate: ClampedGate
    ) -> Tensor:
        """See OpByOp."""
        return gate(gate_up if bias is None else gate_up + bias[experts])


def _rotated(x: Tensor, rotary: Rotary, positions: Tensor) -> Tensor:
    """Rotate the first dims of [tokens, heads, head_size] by their positions' angles."""
    half = rotary.cosine.shape[1]
    cosine = rotary.cosine[positions].unsqueeze(1).to(x.dtype)
    sine = rotary.sine[positions].unsqueeze(1).to(x.dtype)
    low, high = x[..., :half], x[..., half : 2 * half]
    turned = (low * cosine - high * sine, high * cosine + low * sine)
    return torch.cat([*turned, x[..., 2 * half :]], dim=-1)
