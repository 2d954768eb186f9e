"""An engine of random weights, and texts for it, as the sections need them.

It is the engine of a replica: its forward, its recorded steps and its warm-up. Only the reading of
weights is left out.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch

import models
from bench.gpu.model import BLOCK, FULL, TINY, GpuScale, decoder
from engine.kv.cache import KvCache
from engine.kv.layout import KvLayout, LayerShape
from engine.model.forward_selection import RecordedSteps
from engine.model.fused_forward import CompactRunner
from engine.model.fused_weights import Decoder
from engine.model.layers_op_by_op import OpByOp
from engine.model.ops_cuda import TritonOps
from engine.model.ops_torch import TorchOps
from engine.model_description import ModelDescription
from engine.runtime.engine import Engine
from engine.text.completion import ChoiceText, Piece
from engine.text.tokenizer import Tokenizer
from engine.types.sampling_params import SamplingParams

# Of a dry run: large enough for each section's shortest shapes.
DRY = replace(TINY, vocabulary=128, contexts=(64, 512), prompts=(16, 128))
# KV of 64 streams at 2,048 tokens, and of a burst of 300 requests.
_TOKENS, _DRY_TOKENS = 200_000, 8_000


class DemoText(ChoiceText):
    """The text of tokens of any vocabulary, by the tokenizer of the demo model."""

    def __init__(self, tokenizer: Tokenizer, prompt: int, sampling: SamplingParams) -> None:
        most = prompt + (sampling.max_tokens or 1) + 1
        super().__init__(tokenizer, [0] * prompt, sampling, (), most)
        self._vocabulary = tokenizer.vocabulary

    def push(self, token: int) -> Piece:
        """See ChoiceText."""
        return super().push(token % self._vocabulary)


@dataclass(frozen=True, slots=True)
class BenchEngine:
    """An engine, its shape, and the tokenizer of the demo model."""

    engine: Engine
    scale: GpuScale
    tokenizer: Tokenizer

    def text(self, prompt: int, sampling: SamplingParams) -> DemoText:
        """The text of an answer to a prompt of so many tokens."""
        return DemoText(self.tokenizer, prompt, sampling)


def operations(model: Decoder, device: torch.device) -> OpByOp:
    """The operations that a replica would use on that device."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type == "cuda" or (interpreted and importlib.util.find_spec("triton") is not None):
        ops = TritonOps(model)
        if device.type == "cuda":
            ops.choose_kernels()
        return ops
    return TorchOps(model)


def kv_layout(scale: GpuScale) -> KvLayout:
    """The layout of the KV of a shape."""
    shape = LayerShape(scale.kv_heads, scale.size)
    dtype = str(scale.dtype).removeprefix("torch.")
    return KvLayout((shape,) * scale.layers, BLOCK, dtype, "random")


@lru_cache(maxsize=1)
def bench_engine(device: torch.device, dry: bool) -> BenchEngine:
    """The engine of the sections; made once, because its kernels are compiled and steps recorded.

    `bench_engine.cache_clear` frees its memory.
    """
    scale = DRY if dry else FULL
    context = max(scale.contexts)
    folder = Path(models.__path__[0]) / "demo"
    model = decoder(scale, device)
    runner = CompactRunner(model, operations(model, device))
    blocks = (_DRY_TOKENS if dry else _TOKENS) // BLOCK
    cache = KvCache(kv_layout(scale), blocks, device, runner.kv_format)
    description = ModelDescription(
        name="random", folder=folder, architecture="LlamaForCausalLM",
        dtype=cache.layout.dtype, context_tokens=context, vocabulary=scale.vocabulary,
        eos_ids=frozenset(), identity="random", config=None,
    )  # fmt: skip
    recorded = RecordedSteps(runner, context, 256) if device.type == "cuda" else None
    engine = Engine(description, runner, cache, improvement=recorded)
    while engine.improve():
        pass
    return BenchEngine(engine, scale, Tokenizer.load(str(folder)))
