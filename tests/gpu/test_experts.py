"""Experts on a CUDA device: recorded steps in bfloat16, exact answers in float32."""

import random

import pytest
import torch

from engine.config import KvConfig, ModelConfig
from engine.model.packed_batch import pack
from engine.model.runner import whole
from engine.model_description import describe
from engine.runtime.engine import Engine
from engine.types.sequence import Sequence, Span
from tests.engine.families import SERVED, VOCABULARY, save
from tests.engine.model.test_families import BLOCKS, NEW_TOKENS, generate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
FAMILIES = ("mixtral", "qwen3-moe", "gpt-oss-sinks")


@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_steps_follow_each_routing(family, tmp_path):
    """The recording was made of padding; each replay sends other tokens to other experts."""
    save(tmp_path, *SERVED[family])
    config = ModelConfig(path=str(tmp_path), dtype="bfloat16", operations="triton")
    engine = Engine.load(
        describe(config), KvConfig(blocks=BLOCKS), config, most_tokens=1, most_rows=8
    )
    if torch.cuda.get_device_capability()[0] not in (9, 10):
        assert engine.runner.replays is None
        return
    assert engine.prepare_improvement()
    while engine.improve():
        pass
    assert set(engine.runner.replays.sizes) == {1, 2, 4, 8}
    rng, cache = random.Random(0), engine.cache
    for rows in (1, 3, 8, 5):
        spans = []
        for number in range(rows):
            tokens = [rng.randrange(VOCABULARY) for _ in range(60 - number)]
            new = Sequence(str(number), tokens, len(tokens), None)
            new.blocks = list(range(number * 4, number * 4 + 4))
            spans.append(Span(new, len(tokens) - 1, 1))
        with torch.inference_mode():
            for layer in cache.layers:
                layer.normal_()
            found = engine.runner.replays.logits(spans).clone()
            expected = whole(engine.runner.layers(pack(spans, cache)))
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate_in_float32(family, tmp_path):
    torch.backends.cuda.matmul.allow_tf32 = False
    reference = save(tmp_path, *SERVED[family]).cuda()
    config = ModelConfig(path=str(tmp_path), dtype="float32", forward="compact")
    engine = Engine.load(describe(config), KvConfig(blocks=BLOCKS), config, most_tokens=1)
    rng = random.Random(0)
    prompts = [[rng.randrange(3, VOCABULARY) for _ in range(length)] for length in (1, 17, 100)]
    expected = [
        reference.generate(
            torch.tensor([prompt], device="cuda"),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
        )[0].tolist()
        for prompt in prompts
    ]
    assert generate(engine, prompts) == expected
