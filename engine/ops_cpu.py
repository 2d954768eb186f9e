"""The operations of a layer on a CPU in bfloat16: C++ over paired blocks, prepacked oneDNN."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.functional import linear

from engine import kernels
from engine.batch import PackedBatch
from engine.compact import Apply
from engine.compact_weights import Decoder, Layer, Linear
from engine.kv_cache import KvFormat

Tensor = torch.Tensor

_LANES = 16
_MOST_HEAD_SIZE = 256


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
    return None


class CpuOps:
    """See engine.compact.Ops. The operations of `build` must have been loaded."""

    name = "C++ operations"
    kv_format: KvFormat = "pairs"

    def __init__(self, decoder: Decoder, build: kernels.Build = kernels.NATIVE) -> None:
        self._decoder = decoder
        ops = getattr(torch.ops, build.library)
        # An operation's only overload: looking it up at each call would cost microseconds.
        self._add_rms_norm = ops.add_rms_norm.default
        self._attend = ops.attend.default
        self._gate = ops.gate.default

    def prepare(self, weights: Linear) -> Apply:
        """Prepacked for oneDNN, where this torch can; the plain weight is given up."""
        if not torch.backends.mkldnn.is_available():
            return partial(linear, weight=weights.weight, bias=weights.bias)
        packed = torch.ops.mkldnn._reorder_linear_weight(weights.weight, None)
        weights.weight = weights.weight.new_empty(0)
        return partial(_multiply, packed, weights.bias)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """See Ops."""
        decoder = self._decoder
        out: Tensor = self._add_rms_norm(None, x, weight, decoder.eps, decoder.norm_offset)
        return out

    def add_norm(self, residual: Tensor, branch: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """See Ops; adds in place."""
        decoder = self._decoder
        out = self._add_rms_norm(branch, residual, weight, decoder.eps, decoder.norm_offset)
        return residual, out

    def attend(self, qkv: Tensor, layer: Layer, store: Tensor, batch: PackedBatch) -> Tensor:
        """See Ops."""
        decoder = self._decoder
        out: Tensor = self._attend(
            qkv,
            layer.rotary.cosine,
            layer.rotary.sine,
            batch.positions,
            batch.slots,
            layer.query_norm,
            layer.key_norm,
            decoder.eps,
            decoder.norm_offset,
            store,
            batch.tables,
            batch.starts,
            batch.firsts,
            decoder.heads,
            decoder.scaling,
            layer.window or 0,
            decoder.softcap or 0.0,
        )
        return out

    def gate(self, gate_up: Tensor) -> Tensor:
        """See Ops."""
        out: Tensor = self._gate(gate_up, self._decoder.gelu)
        return out


def _multiply(packed: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    result: Tensor = _LINEAR(x, packed, bias, "none", [], "")
    return result


_LINEAR = torch.ops.mkldnn._linear_pointwise.default
