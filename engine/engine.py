"""The engine: owns the device, the weights and the KV; its one verb is `forward`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from engine.batch import pack
from engine.choose import choose_runner
from engine.config import KvConfig, ModelConfig
from engine.errors import ConfigError
from engine.kv_cache import KvCache, block_bytes
from engine.layout import KvLayout
from engine.model import ModelDescription, load_weights
from engine.probe import check_runner, check_tokens, probe_layout, reference_logits
from engine.runner import Runner
from engine.sampler import sample
from engine.sequence import Outcome, Span

log = logging.getLogger(__name__)


class Engine:
    """One model on one device with a pool of KV blocks. Not thread-safe: one step at a time."""

    def __init__(self, description: ModelDescription, runner: Runner, cache: KvCache) -> None:
        self.description = description
        self.cache = cache
        self._runner = runner

    @property
    def forward_name(self) -> str:
        """Which forward computes, for the log."""
        return self._runner.name

    @classmethod
    def load(
        cls,
        description: ModelDescription,
        kv: KvConfig,
        config: ModelConfig | None = None,
        *,
        device: torch.device | None = None,
        most_tokens: int,
        share: int = 1,
    ) -> Engine:
        """Load weights, learn the KV shape, size the pool and check attention against eager.

        `most_tokens` bounds the pool: more could never be used. `share` replicas share the
        device's memory.
        """
        device = device or best_device()
        model: Any = load_weights(description, device)
        plain = probe_layout(description, model, kv.block_size)
        expected = reference_logits(model, check_tokens(description))
        runner, layout = choose_runner(description, model, plain, config or ModelConfig())
        check_runner(description, runner, layout, device, expected)
        blocks = kv.blocks or _fit_blocks(layout, device, kv.memory_fraction / share, most_tokens)
        log.info(
            "engine ready: %s on %s, %s forward, %d KV blocks of %d tokens (%.1f MiB)",
            description.architecture,
            device,
            runner.name,
            blocks,
            layout.block_size,
            blocks * block_bytes(layout) / 2**20,
        )
        return cls(description, runner, KvCache(layout, blocks, device))

    @torch.inference_mode()
    def forward(self, spans: list[Span]) -> list[Outcome]:
        """Compute the spans' tokens and sample where a span reaches its sequence's end.

        KV goes into the sequences' blocks; the sequences themselves are not changed. The answers
        are in the order of `spans`; None where nothing was sampled. A sequence whose numbers
        overflowed gets an Internal; its blocks must be cleared, by `clear`, before anybody else
        gets them: a NaN left there would spread.
        """
        batch = pack(spans, self.cache)
        results: list[Outcome] = [None] * len(spans)
        sampling = [index for index in batch.order if spans[index].samples]
        logits = self._runner.logits(batch)
        if not sampling:
            return results
        tokens = sample(logits, [spans[index].sequence for index in sampling])
        for index, token in zip(sampling, tokens, strict=True):
            results[index] = token
        return results

    def clear(self, blocks: list[int]) -> None:
        """Overwrite blocks with zeros."""
        self.cache.clear(blocks)


def best_device() -> torch.device:
    """The CUDA device where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _fit_blocks(layout: KvLayout, device: torch.device, fraction: float, most_tokens: int) -> int:
    """Blocks that fit in that fraction of what is free now, at most for `most_tokens`."""
    cuda = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if cuda else _available_memory()
    fitting = int(free * fraction) // block_bytes(layout)
    if fitting < 1:
        raise ConfigError("kv: not enough free memory for a single block")
    return min(fitting, layout.blocks_for(most_tokens))


def _available_memory() -> int:
    """Bytes that Linux says can be had without swapping (MemAvailable)."""
    with Path("/proc/meminfo").open() as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise ConfigError("kv: /proc/meminfo names no MemAvailable; set kv.blocks")
