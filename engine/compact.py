"""A forward of our own for the main decoder families: fused projections, logits where sampled."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import embedding

from engine.batch import PackedBatch
from engine.compact_weights import Decoder, Layer, Linear
from engine.graphs import DecodeReplays
from engine.kv_cache import KvCache, KvFormat

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
    kv_format: KvFormat

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


@dataclass(frozen=True, slots=True)
class _Stage:
    """A layer made ready."""

    ops: Ops
    qkv: Apply
    out: Apply
    gate_up: Apply
    down: Apply

    @classmethod
    def of(cls, layer: Layer, ops: Ops) -> _Stage:
        return cls(ops, *map(ops.prepare, (layer.qkv, layer.out, layer.gate_up, layer.down)))


class CompactRunner:
    """Runs a Decoder; see engine.runner.Runner. Operations can change from layer to layer."""

    def __init__(self, decoder: Decoder, ops: Ops) -> None:
        self.kv_format = ops.kv_format
        self.replays: DecodeReplays | None = None
        self._decoder = decoder
        self._ops = ops
        self._stages = [_Stage.of(layer, ops) for layer in decoder.layers]
        self._head = ops.prepare(decoder.head)

    @property
    def name(self) -> str:
        """See Runner."""
        return f"compact, {self._ops.name}"

    def layers(self, batch: PackedBatch) -> Generator[None, None, Tensor]:
        """See Runner."""
        decoder, stages, layers = self._decoder, self._stages, self._decoder.layers
        residual = embedding(batch.tokens, decoder.embedding)
        if decoder.embedding_scale != 1.0:
            residual = residual * torch.tensor(decoder.embedding_scale, dtype=residual.dtype)
        hidden = stages[0].ops.norm(residual, layers[0].input_norm)
        for index, layer in enumerate(layers):
            # Looked up anew: `take` may have changed it since the pass began.
            stage = stages[index]
            ops = stage.ops
            branch = ops.attend(stage.qkv(hidden), layer, batch.cache.layers[index], batch)
            branch = _normed(ops, stage.out(branch), layer.post_attention)
            residual, hidden = ops.add_norm(residual, branch, layer.mlp_norm)
            branch = stage.down(ops.gate(stage.gate_up(hidden)))
            branch = _normed(ops, branch, layer.post_mlp)
            if index + 1 < len(layers):
                residual, hidden = ops.add_norm(residual, branch, layers[index + 1].input_norm)
                yield
        ops = self._ops
        _, hidden = ops.add_norm(residual[batch.last], branch[batch.last], decoder.final_norm)
        return self._capped(self._head(hidden))

    def take(self, ops: Ops, cache: KvCache) -> Iterator[None]:
        """Go over to other operations, a layer at a time; between two passes or two layers."""
        for index, layer in enumerate(self._decoder.layers):
            self._stages[index] = _Stage.of(layer, ops)
            if ops.kv_format == "pairs":
                cache.pair(index)
            yield
        self._head = ops.prepare(self._decoder.head)
        self._ops = ops
        self.kv_format = ops.kv_format

    def _capped(self, logits: Tensor) -> Tensor:
        cap = self._decoder.final_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap


def _normed(ops: Ops, branch: Tensor, weight: Tensor | None) -> Tensor:
    return branch if weight is None else ops.norm(branch, weight)
