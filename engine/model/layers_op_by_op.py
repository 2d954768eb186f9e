"""Layers computed operation by operation, with the operations of torch or Triton."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.kv.cache import KvFormat
from engine.model.experts.grouped_product import grouped_product
from engine.model.experts.routed_experts import RoutedExperts
from engine.model.experts.routing import ClampedGate, Experts
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
    """A layer and its prepared products; `mlp` goes from its input norm to what is added."""

    weights: Layer
    qkv: Apply
    out: Apply
    mlp: Apply


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

    @abstractmethod
    def clamped_gate(
        self, gate_up: Tensor, bias: Tensor | None, experts: Tensor, gate: ClampedGate
    ) -> Tensor:
        """The gate of [rows, 2 * n] plus the `bias` [experts, 2 * n] of each row's expert."""

    def gated(self, gate_up: Apply, hidden: Tensor) -> Tensor:
        """The gate of a prepared product: [tokens, hidden] to [tokens, n]."""
        return self.gate(gate_up(hidden))

    def prepare(self, layer: Layer) -> ReadyLayer:
        """See Layers."""
        return ReadyLayer(layer, self.apply(layer.qkv), self.apply(layer.out), self._mlp(layer))

    def _mlp(self, layer: Layer) -> Apply:
        if layer.experts is not None:
            return self._experts(layer, layer.experts)
        gate_up, down = self.apply(layer.gate_up), self.apply(layer.down)
        return lambda hidden: down(self.gated(gate_up, hidden))

    def _experts(self, layer: Layer, experts: Experts) -> Apply:
        gate_up, down, gate = layer.gate_up, layer.down, experts.gate

        def gate_of_experts(rows: Tensor, expert: Tensor) -> Tensor:
            if gate is None:
                return self.gate(rows)
            return self.clamped_gate(rows, gate_up.bias, expert, gate)

        return RoutedExperts(
            experts.router,
            gate_up.weight,
            gate_of_experts,
            down.weight,
            down.bias,
            grouped_product(gate_up.weight),
        )

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
            branch = self._normed(layer.mlp(hidden), weights.post_mlp)
            if index + 1 < len(layers):
                x, hidden = self.add_norm(x, branch, layers[index + 1].weights.input_norm)
        return x + branch

    def logits(self, x: Tensor, head: Apply) -> Tensor:
        """See Layers."""
        return head(self.norm(x, self._decoder.final_norm))

    def _normed(self, branch: Tensor, weight: Tensor | None) -> Tensor:
        return branch if weight is None else self.norm(branch, weight)
