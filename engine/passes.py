"""One pass of spans through the model, whole or in slices of layers."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

import torch

from engine.batch import PackedBatch, pack
from engine.cores import Cores
from engine.kv_cache import KvCache
from engine.runner import Runner
from engine.sampler import sample
from engine.sequence import Outcome, Span


class Pass:
    """See `Engine.begin`. Belongs to the engine's thread.

    The leading `layers_done` have stored the keys and values of all spans.
    """

    def __init__(
        self, runner: Runner, cache: KvCache, spans: list[Span], cores: Cores | None
    ) -> None:
        self.spans = spans
        self.layers_done = 0
        self._runner = runner
        self._cache = cache
        self._cores = cores
        self._under_way: tuple[PackedBatch, Generator[None, None, torch.Tensor]] | None = None

    @torch.inference_mode()
    def advance(self, for_s: float | None = None) -> list[Outcome] | None:
        """Compute the layers that fit into that time, at least one; None while there is more.

        Where kernels run on their own, as on a GPU, the time is that of launching them.
        """
        until = None if for_s is None else time.monotonic() + for_s
        if self._cores is not None:
            self._cores.enter()
        try:
            return self._advance(until)
        finally:
            if self._cores is not None:
                self._cores.leave()

    def _advance(self, until: float | None) -> list[Outcome] | None:
        if self._under_way is None:
            replays = self._runner.replays
            logits = None if replays is None else replays.logits(self.spans)
            if logits is not None:
                return self._sampled(range(len(self.spans)), logits)
            batch = pack(self.spans, self._cache)
            self._under_way = batch, self._runner.layers(batch)
        batch, layers = self._under_way
        while True:
            began_s = time.monotonic()
            try:
                next(layers)
            except StopIteration as end:
                return self._sampled(batch.order, end.value)
            self.layers_done += 1
            ended_s = time.monotonic()
            if until is not None and ended_s + (ended_s - began_s) > until:
                return None

    def _sampled(self, order: Sequence[int], logits: torch.Tensor) -> list[Outcome]:
        spans = self.spans
        results: list[Outcome] = [None] * len(spans)
        sampling = [index for index in order if spans[index].samples]
        if not sampling:
            return results
        tokens = sample(logits, [spans[index].sequence for index in sampling])
        for index, token in zip(sampling, tokens, strict=True):
            results[index] = token
        return results
