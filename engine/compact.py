"""A forward of our own for the main decoder families: fused projections, logits where sampled."""

from __future__ import annotations

from typing import Protocol

import torch

from engine.batch import PackedBatch
from engine.compact_weights import Decoder, Layer, Linear

Tensor = torch.Tensor


class Apply(Protocol):
    """A linear layer made ready: [rows, in] to [rows, out]."""

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply."""
        ...


class Ops(Protocol):
    """The operations of a layer, on one kind of device.

    `x` and `residual` are [tokens, hidden]. Operations may reuse what they are given.
    """

    name: str

    def prepare(self, linear: Linear) -> Apply:
        """Bring weights into the form that is fastest to multiply with."""
        ...

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMS norm."""
        ...

    def add_norm(self, residual: Tensor, branch: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(residual + branch, its RMS norm)."""
        ...

    def attend(self, qkv: Tensor, layer: Layer, store: Tensor, batch: PackedBatch) -> Tensor:
        """Rotate, store keys and values in their blocks, attend: [tokens, heads * head_size]."""
        ...

    def gate(self, gate_up: Tensor) -> Tensor:
        """act(gate) * up: [tokens, 2 * n] to [tokens, n]."""
        ...


class CompactRunner:
    """Runs a Decoder; see engine.runner.Runner."""

    def __init__(self, decoder: Decoder, ops: Ops) -> None:
        self.name = f"compact, {ops.name}"
        self._decoder = decoder
        self._ops = ops
        self._linears = [
            tuple(map(ops.prepare, (layer.qkv, layer.out, layer.gate_up, layer.down)))
            for layer in decoder.layers
        ]
        self._head = ops.prepare(decoder.head)

    def logits(self, batch: PackedBatch) -> Tensor:
        """See Runner."""
        decoder, ops = self._decoder, self._ops
        residual = torch.nn.functional.embedding(batch.tokens, decoder.embedding)
        if decoder.embedding_scale != 1.0:
            residual = residual * torch.tensor(decoder.embedding_scale, dtype=residual.dtype)
        hidden = ops.norm(residual, decoder.layers[0].input_norm)
        following = [layer.input_norm for layer in decoder.layers[1:]]
        for index, layer in enumerate(decoder.layers):
            qkv, out, gate_up, down = self._linears[index]
            branch = out(ops.attend(qkv(hidden), layer, batch.cache.layers[index], batch))
            branch = self._normed(branch, layer.post_attention)
            residual, hidden = ops.add_norm(residual, branch, layer.mlp_norm)
            branch = self._normed(down(ops.gate(gate_up(hidden))), layer.post_mlp)
            if index < len(following):
                residual, hidden = ops.add_norm(residual, branch, following[index])
        _, hidden = ops.add_norm(residual[batch.last], branch[batch.last], decoder.final_norm)
        return self._capped(self._head(hidden))

    def _normed(self, branch: Tensor, weight: Tensor | None) -> Tensor:
        return branch if weight is None else self._ops.norm(branch, weight)

    def _capped(self, logits: Tensor) -> Tensor:
        cap = self._decoder.final_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap
