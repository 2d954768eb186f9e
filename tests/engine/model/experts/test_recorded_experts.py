"""Decode steps with experts through static, padded buffers, with the grouped product of a GPU."""

import random

import pytest
import torch

from engine.config import KvConfig, ModelConfig
from engine.model.cuda_graphs import DecodeReplays
from engine.model.experts.grouped_product import product_by_torch
from engine.model.packed_batch import pack
from engine.model.runner import whole
from engine.model_description import describe
from engine.runtime.engine import Engine
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence, Span
from tests.engine.families import SERVED, VOCABULARY, save

BLOCKS, CONTEXT = 64, 128


@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe-some-dense", "gpt-oss-sinks"])
def test_a_recorded_step_is_the_eager_step_and_the_modules(family, tmp_path, monkeypatch):
    """Three streams in a recording for four: the padding goes to experts, too."""
    monkeypatch.setattr(
        "engine.model.layers_op_by_op.grouped_product", lambda weight: product_by_torch
    )
    reference = save(tmp_path, *SERVED[family])
    config = ModelConfig(path=str(tmp_path), dtype="float32", forward="compact")
    engine = Engine.load(describe(config), KvConfig(blocks=BLOCKS), config, most_tokens=1)
    runner, cache = engine.runner, engine.cache
    rng, greedy = random.Random(2), SamplingParams(temperature=0.0, max_tokens=1)
    blocks = rng.sample(range(BLOCKS), BLOCKS)
    running = []
    for number, length in enumerate((5, 33, 90)):
        tokens = [rng.randrange(3, VOCABULARY) for _ in range(length)]
        new = Sequence(str(number), tokens, length, greedy)
        new.blocks, blocks = blocks[:6], blocks[6:]
        running.append(new)
    engine.forward([Span(s, 0, len(s.tokens) - 1) for s in running])
    spans = [Span(s, len(s.tokens) - 1, 1) for s in running]
    width = cache.layout.blocks_for(CONTEXT)
    with torch.inference_mode():
        eager = whole(runner.layers(pack(spans, cache)))
        replays = DecodeReplays(
            lambda batch: whole(runner.layers(batch)), cache, width, lambda step: step, (1, 4)
        )
        for _ in replays.pieces():
            pass
        recorded = replays.logits(spans)
        expected = torch.stack(
            [reference(torch.tensor([s.tokens]), use_cache=False).logits[0, -1] for s in running]
        )
    torch.testing.assert_close(recorded, eager, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(recorded, expected, rtol=1e-3, atol=1e-3)
