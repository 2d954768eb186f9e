"""Tandem's forward for the main decoder families: fused projections, logits where sampled."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Protocol

import torch
from torch.nn.functional import embedding

from engine.kv.cache import KvCache, KvFormat
from engine.model.cuda_graphs import DecodeReplays
from engine.model.fused_weights import Decoder, Layer
from engine.model.packed_batch import PackedBatch
from engine.model.runner import ForwardOutput

Tensor = torch.Tensor


class Layers(Protocol):
    """Computes layers of one decoder, on one kind of device.

    `x` is the residual stream, [tokens, hidden]; it may be written to. Only the implementation
    knows the form that `prepare` gives a layer.
    """

    name: str
    kv_format: KvFormat

    def prepare(self, layer: Layer) -> Any:
        """Bring a layer's weights into the form that is fastest to compute with."""
        ...

    def prepare_head(self) -> Any:
        """Bring the final norm and the head into that form."""
        ...

    def run(
        self,
        x: Tensor,
        layers: list[Any],
        stores: list[Tensor],
        batch: PackedBatch,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """The stream behind consecutive layers; their keys and values go to `stores`.

        With `wanted`, indices [rows] in order of tokens that end their spans: [rows, hidden].
        """
        ...

    def logits(self, x: Tensor, head: Any) -> Tensor:
        """[rows, vocabulary] of the rows of the stream behind the last layer."""
        ...


@dataclass(frozen=True, slots=True)
class _PreparedLayer:
    """A prepared layer, and the implementation that computes it."""

    by: Layers
    layer: Any


class CompactRunner:
    """Runs a Decoder; see engine.model.runner.Runner.

    The implementation can change from layer to layer.
    """

    def __init__(self, decoder: Decoder, by: Layers) -> None:
        self.kv_format = by.kv_format
        self.replays: DecodeReplays | None = None
        self._decoder = decoder
        self._prepared = [_PreparedLayer(by, by.prepare(layer)) for layer in decoder.layers]
        self._head = _PreparedLayer(by, by.prepare_head())

    @property
    def name(self) -> str:
        """See Runner."""
        return f"compact, {self._head.by.name}"

    def layers(self, batch: PackedBatch) -> Generator[int, None, ForwardOutput]:
        """See Runner. Steps of single tokens are not cut."""
        decoder, whole = self._decoder, batch.segments[-1].queries == 1
        most = len(self._prepared) if whole else 1
        # A prompt's last layer needs all keys and values, but its output only where sampled.
        narrow = not whole and not batch.scored
        x = embedding(batch.tokens, decoder.embedding)
        if decoder.embedding_scale != 1.0:
            x = x * torch.tensor(decoder.embedding_scale, dtype=x.dtype)
        done = 0
        while done < len(self._prepared):
            # Looked up anew: `take` may have changed them since the pass began.
            group = self._group(done, most)
            end = done + len(group)
            prepared = [one.layer for one in group]
            wanted = batch.last if narrow and end == len(self._prepared) else None
            x = group[0].by.run(x, prepared, batch.cache.layers[done:end], batch, wanted)
            done = end
            yield done
        return ForwardOutput(
            self._logits(x if narrow else x[batch.last]), lambda rows: self._logits(x[rows])
        )

    def take(self, by: Layers, cache: KvCache) -> Iterator[None]:
        """Let another implementation compute, a layer at a time, between two passes or layers."""
        for index, layer in enumerate(self._decoder.layers):
            self._prepared[index] = _PreparedLayer(by, by.prepare(layer))
            if by.kv_format == "pairs":
                cache.pair(index)
            yield
        self._head = _PreparedLayer(by, by.prepare_head())
        self.kv_format = by.kv_format

    def _logits(self, x: Tensor) -> Tensor:
        """[rows, vocabulary] of rows of the stream behind the last layer."""
        logits: Tensor = self._head.by.logits(x, self._head.layer)
        cap = self._decoder.final_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _group(self, first: int, most: int) -> list[_PreparedLayer]:
        """At most `most` layers from `first` on that the same implementation computes."""
        by = self._prepared[first].by
        return list(takewhile(lambda layer: layer.by is by, self._prepared[first : first + most]))
