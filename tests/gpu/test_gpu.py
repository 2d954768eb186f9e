"""What only a CUDA device shows: exactness there, and the NCCL lane's code path."""

import pytest
import torch

from engine.blocks import BlockPool
from engine.config import KvConfig, ModelConfig
from engine.engine import Engine
from engine.kv_cache import KvCache
from engine.layout import KvLayout, LayerShape
from engine.model import describe
from engine.sampling import SamplingParams
from engine.sequence import Sequence, Span
from tests import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
NEW_TOKENS = 32


def test_greedy_equals_generate_in_float32(tmp_path):
    """Chunks, crowds and scattered blocks on the device, against `generate` on the device."""
    torch.backends.cuda.matmul.allow_tf32 = False
    reference = tiny.make(tmp_path).cuda()
    description = describe(ModelConfig(path=str(tmp_path), dtype="float32"))
    engine = Engine.load(description, KvConfig(blocks=400), most_tokens=1)
    pool = BlockPool(400)
    greedy = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    sequences = []
    for number, length in enumerate((1, 15, 16, 17, 100, 511, 513, 1500)):
        prompt = torch.randint(256, (length,), generator=torch.Generator().manual_seed(length))
        new = Sequence(str(number), prompt.tolist(), length, greedy)
        new.blocks = pool.allocate(new.owner, engine.cache.layout.blocks_for(length + NEW_TOKENS))
        sequences.append(new)
    while running := [s for s in sequences if s.output_tokens < NEW_TOKENS]:
        spans = [Span(s, s.computed, min(128, s.remaining)) for s in running]
        for span, sampled in zip(spans, engine.forward(spans), strict=True):
            span.sequence.computed += span.count
            if sampled is not None:
                span.sequence.tokens.append(sampled.token)
    for sequence in sequences:
        prompt = torch.tensor([sequence.tokens[: sequence.prompt_tokens]], device="cuda")
        expected = reference.generate(
            prompt, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
        )
        assert sequence.tokens == expected[0].tolist()


@pytest.mark.parametrize("staging", ["cpu", "cuda"])
def test_blocks_survive_gather_and_scatter(staging):
    """Through pinned host memory (Gloo) and through device memory (NCCL)."""
    layout = KvLayout((LayerShape(2, 16), LayerShape(4, 8)), 16, "bfloat16", "x")
    device = torch.device("cuda", 0)
    source, target = KvCache(layout, 8, device), KvCache(layout, 8, device)
    for layer in source.layers:
        layer.normal_()
    size = 3 * source.block_bytes(0, 2)
    buffer = torch.empty(size, dtype=torch.uint8, device=staging, pin_memory=staging == "cpu")
    source.gather([5, 0, 7], 0, 2, buffer)
    target.scatter([1, 2, 3], 0, 2, buffer)
    for mine, theirs in zip(source.layers, target.layers, strict=True):
        assert torch.equal(mine[:, [5, 0, 7]], theirs[:, [1, 2, 3]])
