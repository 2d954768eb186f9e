"""The operations of a layer on a CPU in bfloat16: C++ over paired blocks, prepacked oneDNN."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.functional import linear

from engine.batch import PackedBatch
from engine.compact import Apply
from engine.compact_weights import Decoder, Layer, Linear

Tensor = torch.Tensor

_LANES = 16
_MOST_HEAD_SIZE = 256
_MOST_GROUP = 12


def why_not(decoder: Decoder, block_size: int) -> str | None:
    """Why these operations cannot serve the model, or None."""
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
    if decoder.heads // decoder.kv_heads > _MOST_GROUP:
        return f"more than {_MOST_GROUP} heads share a KV head"
    if decoder.softcap is not None:
        return "the model caps its scores"
    return None


class CpuOps:
    """See engine.compact.Ops."""

    name = "C++ operations"

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._ops = torch.ops.tandem_cpu

    def prepare(self, weights: Linear) -> Apply:
        """Prepacked for oneDNN, where this torch can."""
        if not torch.backends.mkldnn.is_available():
            return partial(linear, weight=weights.weight, bias=weights.bias)
        packed = torch.ops.mkldnn._reorder_linear_weight(weights.weight, None)
        return partial(_multiply, packed, weights.bias)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """See Ops."""
        out = torch.empty_like(x)
        self._ops.add_rms_norm(None, x, weight, self._decoder.eps, self._decoder.norm_offset, out)
        return out

    def add_norm(self, residual: Tensor, branch: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """See Ops; adds in place."""
        out = torch.empty_like(residual)
        eps, offset = self._decoder.eps, self._decoder.norm_offset
        self._ops.add_rms_norm(branch, residual, weight, eps, offset, out)
        return residual, out

    def attend(self, qkv: Tensor, layer: Layer, store: Tensor, batch: PackedBatch) -> Tensor:
        """See Ops."""
        decoder = self._decoder
        query = qkv.new_empty(len(qkv), decoder.heads, decoder.head_size)
        rotary = layer.rotary
        self._ops.rope_store(
            qkv,
            rotary.cosine,
            rotary.sine,
            batch.positions,
            batch.slots,
            layer.query_norm,
            layer.key_norm,
            decoder.eps,
            decoder.norm_offset,
            store,
            query,
        )
        out = torch.empty_like(query)
        self._ops.paged_attention(
            query,
            store,
            batch.tables,
            batch.starts,
            batch.firsts,
            decoder.scaling,
            layer.window or 0,
            out,
        )
        return out.flatten(1)

    def gate(self, gate_up: Tensor) -> Tensor:
        """See Ops."""
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        self._ops.gate(gate_up, self._decoder.gelu, out)
        return out


def _multiply(packed: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return result
