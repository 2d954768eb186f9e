"""Layers computed operation by operation, with the operations of torch or Triton."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.kv.cache import KvFormat
from engine.model.fused_weights import Decoder, Layer, Linear
from engine.model.packed_batch import PackedBatch

Tensor = torch.Tensor


class Apply(Protocol):
    """A prepared linear layer: [rows, in] to [rows, out]."""

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply."""
        ...


@dataclass(frozen=True, slots=True)
class ReadyLayer:
    """A layer and its prepared products."""

    weights: Layer
    qkv: Apply
    out: Apply
    gate_up: Apply
    down: Apply


class OpByOp(ABC):
    """See engine.model.fused_forward.Layers. Operations may overwrite their arguments."""

    name: str
    kv_format: KvFormat = "plain"

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    @abstractmethod
    def apply(self, linear: Linear) -> Apply:
        """Bring weights into the form that is fastest to multiply with."""

    @abstractmethod
    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMS norm."""

    @abstractmethod
    def add_norm(self, residual: Tensor, branch: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(residual + branch, its RMS norm)."""

    @abstractmethod
    def attend(self, qkv: Tensor, layer: Layer, store: Tensor, batch: PackedBatch) -> Tensor:
        """Rotate, store keys and values in their blocks, attend: [tokens, heads * head_size]."""

    @abstractmethod
    def gate(self, gate_up: Tensor) -> Tensor:
        """act(gate) * up: [tokens, 2 * n] to [tokens, n]."""

    def prepare(self, layer: Layer) -> ReadyLayer:
        """See Layers."""
        linears = (layer.qkv, layer.out, layer.gate_up, layer.down)
        return ReadyLayer(layer, *map(self.apply, linears))

    def prepare_head(self) -> Apply:
        """See Layers."""
        return self.apply(self._decoder.head)

    def run(
        self,
        x: Tensor,
        layers: list[ReadyLayer],
        stores: list[Tensor],
        batch: PackedBatch,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """See Layers. A branch is added together with the norm after it."""
        hidden = self.norm(x, layers[0].weights.input_norm)
        for index, (layer, store) in enumerate(zip(layers, stores, strict=True)):
            weights = layer.weights
            attended = self.attend(layer.qkv(hidden), weights, store, batch)
            if wanted is not None and index + 1 == len(layers):
                x, attended = x[wanted], attended[wanted]
                if not len(x):
                    return x
            branch = layer.out(attended)
            branch = self._normed(branch, weights.post_attention)
            x, hidden = self.add_norm(x, branch, weights.mlp_norm)
            branch = layer.down(self.gate(layer.gate_up(hidden)))
            branch = self._normed(branch, weights.post_mlp)
            if index + 1 < len(layers):
                x, hidden = self.add_norm(x, branch, layers[index + 1].weights.input_norm)
        return x + branch

    def logits(self, x: Tensor, head: Apply) -> Tensor:
        """See Layers."""
        return head(self.norm(x, self._decoder.final_norm))

    def _normed(self, branch: Tensor, weight: Tensor | None) -> Tensor:
        return branch if weight is None else self.norm(branch, weight)
