"""The engine: it owns the device, the weights and the KV, and computes steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

from engine.config import KvConfig, ModelConfig
from engine.cpu.core_sharing import CoreSharing
from engine.device import best_device
from engine.errors import Internal
from engine.fp8.kv_scales import fold_kv_scales
from engine.grammar.masks import MaskMaker
from engine.kv.cache import KvCache
from engine.kv.memory import block_bytes
from engine.model.cuda_graphs import MOST_ROWS, buckets_for
from engine.model.forward_selection import Improvement, choose_runner
from engine.model.loading import load_weights
from engine.model.runner import Runner
from engine.model.self_check import check_runner, check_tokens, probe_layout, reference_logits
from engine.model.warm_up import time_passes
from engine.model_description import ModelDescription
from engine.runtime.forward_pass import Pass
from engine.runtime.pool_size import pool_blocks, reserved_bytes
from engine.sampling.device_sampler import DeviceSampler, device_sampler
from engine.sampling.drawn_tokens import DrawnTokens
from engine.sampling.sampler import Draw, draw
from engine.scheduling.pass_cost import PassTiming
from engine.startup_timer import StartupTimer
from engine.types.sequence import Outcome, Span
from engine.types.urgency import Urgency

log = logging.getLogger(__name__)


class Engine:
    """One model on one device with a pool of KV blocks. Not thread-safe: one step at a time.

    `runner` computes its forward and `cache` has its blocks. `sampler` draws the tokens on the
    device; without it torch does. `pass_timing` is that of passes over prompts, where the warm-up
    has timed them.
    """

    def __init__(
        self,
        description: ModelDescription,
        runner: Runner,
        cache: KvCache,
        *,
        improvement: Improvement | None = None,
        cores: CoreSharing | None = None,
        sampler: DeviceSampler | None = None,
        timer: StartupTimer | None = None,
    ) -> None:
        self.description = description
        self.cache = cache
        self.runner = runner
        self.pass_timing: PassTiming | None = None
        self._improvement = improvement
        self._pieces: Iterator[None] | None = None
        self._cores = cores
        self._sampler = sampler
        self._timer = timer or StartupTimer()
        self._draw: Draw = draw if sampler is None else sampler.draw
        self._masks = MaskMaker(description.vocabulary)

    @property
    def forward_name(self) -> str:
        """The forward's name, for the log."""
        return self.runner.name

    @classmethod
    def load(
        cls,
        description: ModelDescription,
        kv: KvConfig,
        config: ModelConfig | None = None,
        *,
        device: torch.device | None = None,
        most_tokens: int,
        most_rows: int = MOST_ROWS,
        share: int = 1,
        link_bytes: int = 0,
        timer: StartupTimer | None = None,
    ) -> Engine:
        """Load weights, learn the KV shape, size the pool and check attention against eager.

        `most_tokens` bounds the pool, because a replica can use no more. Steps of up to `most_rows`
        sequences are recorded where the device can. `share` replicas share the device's memory.
        `link_bytes` of a GPU are for links. `timer` times the stages,
        and counts the steps of an improvement that comes within one.
        """
        device = device or best_device()
        timer = timer or StartupTimer()
        timer.begin("weights")
        model: Any = load_weights(description, device, timer)
        timer.begin("reference")
        weight_bytes = sum(weight.nbytes for weight in model.parameters())
        scaled_kv = kv.dtype != "auto" and fold_kv_scales(description, model)
        layout = probe_layout(description, model, kv.block_size, kv.dtype, scaled_kv=scaled_kv)
        expected = reference_logits(model, check_tokens(description))
        timer.begin("operations")
        config = config or ModelConfig()
        runner, improvement = choose_runner(
            description, model, kv.block_size, kv.dtype, config, most_rows
        )
        timer.begin("check")
        check_runner(description, runner, layout, device, expected)
        timer.begin("pool")
        sampler = device_sampler(buckets_for(most_rows)[-1], description.vocabulary, device)
        blocks = kv.blocks
        if blocks is None:
            reserved = reserved_bytes(runner, improvement, layout, device) | {"links": link_bytes}
            blocks = pool_blocks(layout, device, kv, most_tokens, share, reserved)
        cache = KvCache(layout, blocks, device, runner.kv_format)
        timer.end()
        log.info(
            "engine ready: %s on %s, %s, %d KV blocks of %d tokens (%.1f MiB); %s",
            description.architecture,
            device,
            runner.name,
            blocks,
            layout.block_size,
            blocks * block_bytes(layout) / 2**20,
            timer,
        )
        cores = CoreSharing(weight_bytes) if device.type == "cpu" else None
        return cls(
            description,
            runner,
            cache,
            improvement=improvement,
            cores=cores,
            sampler=sampler,
            timer=timer,
        )

    def forward(self, spans: list[Span]) -> list[Outcome]:
        """Compute the spans' tokens and sample where a span reaches its sequence's end.

        KV goes into the sequences' blocks; the sequences themselves are not changed. The results
        are in the order of `spans`; None where nothing was sampled. A sequence whose numbers
        overflowed gets an Internal. Its blocks must be cleared, by `clear`, before another
        sequence gets them, because a NaN in them would spread.
        """
        results = self.begin(spans).advance()
        if results is None:
            raise Internal("a pass without a limit was cut")
        return results

    @property
    def rows_ahead(self) -> int:
        """The most rows of a step that `launch` takes; 0: it takes none, as on a CPU."""
        replays = self.runner.replays
        return 0 if replays is None else replays.most_rows

    @torch.inference_mode()
    def launch(self, spans: list[Span]) -> DrawnTokens:
        """Launch a decode step of at most `rows_ahead` spans, and wait for nothing.

        A span may follow a row of the step that was launched before. Each sequence `may_follow`.
        """
        replays = self.runner.replays
        logits = None if replays is None else replays.logits(spans)
        if replays is None or logits is None:
            raise Internal(f"a step of {len(spans)} has no recording")
        ends = [span.start + span.count for span in spans]
        drawn = self._draw(logits, [span.sequence for span in spans], ends, None)
        replays.keep(drawn.tokens)
        return drawn

    def begin(self, spans: list[Span], stored: Callable[[], None] | None = None) -> Pass:
        """Begin what `forward` computes, as a pass in slices of layers.

        Steps of other sequences may be computed between two slices. The spans keep their blocks
        until the pass has ended. On a CPU `stored` is called once the spans' KV is stored; on
        other devices this is not known before the end of the pass.
        """
        return Pass(self.runner, self.cache, spans, self._cores, self._masks, self._draw, stored)

    @property
    def shared_cores(self) -> str:
        """A name of the cores that this engine shares with other engines; "": it shares none."""
        return "" if self._cores is None else self._cores.shared_name

    @property
    def urgency(self) -> Urgency:
        """The urgency of prompts that other engines compute on these cores."""
        return Urgency.NONE if self._cores is None else self._cores.urgency

    def yield_cores(self) -> None:
        """Let other engines on this host use the cores until the next step."""
        if self._cores is not None:
            self._cores.yield_cores()

    @property
    def is_improved_first(self) -> bool:
        """Whether `improve` must end before there are streams; see `Improvement.stalls`."""
        return self._improvement is not None and self._improvement.stalls

    def prepare_improvement(self) -> bool:
        """Do the slow part of making steps faster, on any thread; whether `improve` follows."""
        if self._improvement is None:
            return False
        reason = self._improvement.prepare()
        if reason is not None:
            log.info("%s: %s", self.forward_name, reason)
        return reason is None

    @torch.inference_mode()
    def improve(self) -> bool:
        """Swap in a piece of the improvement, between two steps; whether more pieces follow."""
        if self._improvement is None:
            return False
        if self._pieces is None:
            steps = self._improvement.steps(draws=self._sampler is not None)
            self._timer.expect(steps, "steps")
            self._pieces = self._improved(self._improvement)
        for _ in self._pieces:
            self._timer.advance(1)
            return True
        if self._improvement.stalls:
            context_tokens = self.description.context_tokens
            self.pass_timing = time_passes(self.runner, self.cache, context_tokens)
        self._improvement = self._pieces = None
        log.info("engine improved: %s", self.forward_name)
        return False

    def _improved(self, improvement: Improvement) -> Iterator[None]:
        """The pieces of the improvement, then the draws from the recorded logits."""
        yield from improvement.pieces(self.cache)
        if self.runner.replays is not None and self._sampler is not None:
            yield from self.runner.replays.record_draws(self._sampler.record)

    def clear(self, blocks: list[int]) -> None:
        """Overwrite blocks with zeros."""
        self.cache.clear(blocks)
