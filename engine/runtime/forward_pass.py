"""One pass of spans through the model, whole or in slices of layers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import torch

from engine.cpu.core_sharing import CoreSharing
from engine.errors import Internal, TandemError
from engine.grammar.masks import MaskMaker, PendingMasks
from engine.kv.cache import KvCache
from engine.model.packed_batch import pack
from engine.model.runner import ForwardOutput, Runner
from engine.runtime.slice_limit import DeviceLimit, HostLimit, SliceLimit
from engine.sampling.sampler import Draw
from engine.sampling.scorer import Scorer
from engine.types.scores import Scores
from engine.types.sequence import Outcome, SampledToken, ScoredSpan, Span, urgency_of


class Pass:
    """See `Engine.begin`. Belongs to the engine's thread.

    The leading `layers_done` layers have stored the keys and values of all spans. `stored` is
    called when all layers have, before the logits are computed. Scores are computed behind the
    layers, in slices too.

    On a GPU kernels are launched and run by themselves. The end of each slice waits for them, so
    that no kernel writes to the blocks of an abandoned pass. Within a slice `layers_done` rises as
    the device passes the marks of `engine/runtime/slice_limit.py`.
    """

    def __init__(
        self,
        runner: Runner,
        cache: KvCache,
        spans: list[Span],
        cores: CoreSharing | None,
        mask_maker: MaskMaker,
        draw: Draw,
        stored: Callable[[], None] | None = None,
    ) -> None:
        self.spans = spans
        self.layers_done = self._layers_launched = 0
        self._launches = cache.launches
        self._limit: SliceLimit = DeviceLimit(cache.mark) if cache.launches else HostLimit()
        self._runner = runner
        self._cache = cache
        self._cores = cores
        self._stored = stored
        self._mask_maker = mask_maker
        self._draw = draw
        self._masks: PendingMasks | None = None
        self._under_way: Generator[None, None, list[Outcome] | None] | None = None
        self._cut = False
        self._halted = torch.zeros(1, dtype=torch.int32)

    def cut(self) -> None:
        """Have the current slice end with its layer. Safe to call from any thread."""
        self._cut = True

    def halt(self) -> None:
        """End the pass for good, as soon as possible. Safe to call from any thread.

        A halted pass has no results. Behind `layers_done` its blocks may have any content.
        """
        self._halted.fill_(1)

    @torch.inference_mode()
    def advance(self, for_s: float | None = None) -> list[Outcome] | None:
        """Compute at least one layer, and more within `for_s`; None while the pass is incomplete.

        A slice that is cut ends sooner, a halted pass ends at once. On a GPU `for_s` is the time
        of the device, and a slice that is cut ends behind the few layers that were launched.
        """
        self._limit.begin(for_s)
        if self._cores is not None:
            self._cores.enter(urgency_of(self.spans))
        try:
            return self._advance(for_s)
        finally:
            self._cut = False
            self._cache.synchronize()
            self.layers_done = self._layers_launched
            if self._cores is not None:
                self._cores.leave()

    def _advance(self, for_s: float | None) -> list[Outcome] | None:
        if self._under_way is None:
            self._masks = self._mask_maker.begin([s.sequence for s in self.spans if s.samples])
            replays = self._runner.replays
            logits = None if replays is None else replays.logits(self.spans)
            if logits is not None:
                return [*self._sampled(range(len(self.spans)), logits)]
            self._under_way = self._work()
        while not self._unwanted:
            try:
                next(self._under_way)
            except StopIteration as end:
                results: list[Outcome] | None = end.value
                return results
            goes_on = self._limit.goes_on(self._layers_launched)
            self.layers_done = self._limit.layers_done
            if for_s is not None and (self._cut or not goes_on):
                return None
            if self._cores is not None:
                self._cores.adapt()
        return None

    @property
    def _unwanted(self) -> bool:
        return bool(self._halted)

    def _work(self) -> Generator[None, None, list[Outcome] | None]:
        batch = pack(self.spans, self._cache)
        batch.halted = self._halted
        if self._cores is not None:
            batch.beside = self._cores.beside
        computed = yield from self._layers(self._runner.layers(batch))
        if self._unwanted:
            return None  # the output of a halted step is not sampled
        results = self._sampled(batch.order, computed.logits)
        scorer = Scorer(self.spans, batch.order, self._cache.device)
        yield from scorer.run(computed.logits_of)
        return [_joined(one, scorer.result(index)) for index, one in enumerate(results)]

    def _layers(
        self, layers: Generator[int, None, ForwardOutput]
    ) -> Generator[None, None, ForwardOutput]:
        while True:
            try:
                done = next(layers)
            except StopIteration as end:
                computed: ForwardOutput = end.value
                return computed
            if not self._unwanted:
                self._layers_launched = done
                if not self._launches:
                    self.layers_done = done
            if done < len(self._cache.layers):
                yield
                continue
            if self._cores is not None:
                self._cores.adapt()
            if self._stored is not None and not (self._unwanted or self._launches):
                self._stored()

    def _sampled(
        self, order: Sequence[int], logits: torch.Tensor
    ) -> list[SampledToken | TandemError | None]:
        spans = self.spans
        results: list[SampledToken | TandemError | None] = [None] * len(spans)
        sampling = [index for index in order if spans[index].samples]
        if not sampling:
            return results
        masks = None if self._masks is None else self._masks.result()
        sequences = [spans[index].sequence for index in sampling]
        drawn = self._draw(logits, sequences, [len(one.tokens) for one in sequences], masks)
        for index, token in zip(sampling, drawn.read(), strict=True):
            results[index] = token
        return results


def _joined(
    sampled: SampledToken | TandemError | None, scores: Scores | Internal | None
) -> Outcome:
    """The result of a span. A fault of sampling or scoring is a fault of the sequence."""
    if scores is None or isinstance(sampled, TandemError):
        return sampled
    return scores if isinstance(scores, Internal) else ScoredSpan(scores, sampled)
