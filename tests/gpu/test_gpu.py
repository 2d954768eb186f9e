"""What only a CUDA device shows: exactness there, and the NCCL channel's code path."""

import threading

import pytest
import torch

from engine.config import KvConfig, ModelConfig
from engine.kv.block_pool import BlockPool
from engine.kv.cache import KvCache
from engine.kv.layout import KvLayout, LayerShape
from engine.model.cuda_graphs import BUCKETS, CudaGraphs
from engine.model.packed_batch import pack
from engine.model.runner import whole
from engine.model_description import describe
from engine.runtime.engine import Engine
from engine.sampling.device_sampler import DeviceSampler
from engine.sampling.sampler import draw
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence, Span
from tests import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
NEW_TOKENS = 32


@pytest.mark.parametrize("operations", ["torch", "triton", "triton, recorded"])
def test_greedy_equals_generate_in_float32(tmp_path, operations):
    """Chunks, crowds and scattered blocks on the device, against `generate` on the device."""
    torch.backends.cuda.matmul.allow_tf32 = False
    reference = tiny.make(tmp_path).cuda()
    name, _, recorded = operations.partition(", ")
    config = ModelConfig(path=str(tmp_path), dtype="float32", operations=name)
    engine = Engine.load(describe(config), KvConfig(blocks=400), config, most_tokens=1)
    if recorded:
        _record_all(engine)
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


def _record_all(engine):
    """Record every batch size, with a copy of blocks on another thread meanwhile."""
    cache, done = engine.cache, threading.Event()
    buffer = torch.empty(3 * cache.block_bytes(0, 1), dtype=torch.uint8).pin_memory()

    def copy():
        while not done.is_set():
            cache.gather([5, 0, 7], 0, 1, buffer)

    copying = threading.Thread(target=copy)
    copying.start()
    try:
        assert engine.prepare_improvement()
        while engine.improve():
            pass
    finally:
        done.set()
        copying.join()
    assert set(engine.runner.replays.sizes) == set(BUCKETS)


def test_a_replay_gives_the_eager_logits(tmp_path):
    """Bucket after bucket in bfloat16, and only its own slots of the cache change."""
    tiny.make(tmp_path)
    config = ModelConfig(path=str(tmp_path), dtype="bfloat16", operations="triton")
    engine = Engine.load(describe(config), KvConfig(blocks=400), config, most_tokens=1)
    _record_all(engine)
    cache, runner = engine.cache, engine.runner
    for rows in (1, 3, 8, 17, 20, 3):
        spans = []
        for number in range(rows):
            new = Sequence(str(number), [(number * 7 + i) % 250 for i in range(100)], 100, None)
            new.blocks = list(range(number * 7, number * 7 + 7))
            spans.append(Span(new, 99 - number, 1))
            new.tokens = new.tokens[: 100 - number]
        with torch.inference_mode():
            for layer in cache.layers:
                layer.normal_()  # or a slot may be written with what it holds
            before = [layer.clone() for layer in cache.layers]
            got = runner.replays.logits(spans).clone()
            written = {s.sequence.blocks[s.start // 16] * 16 + s.start % 16 for s in spans}
            for layer, old in zip(cache.layers, before, strict=True):
                changed = (layer != old)[:, :-1].flatten(1, 2).any(-1).any(-1).any(0)
                assert set(changed.nonzero().flatten().tolist()) == written
            expected = whole(runner.layers(pack(spans, cache)))
        torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)


def test_draws_from_recorded_logits_are_those_of_the_host():
    """Each kind of draw as a CUDA graph, over a real vocabulary, draw after draw."""
    device, vocabulary = torch.device("cuda", 0), 128_256
    sampler = DeviceSampler(8, vocabulary, device)
    logits = torch.zeros((8, vocabulary), dtype=torch.bfloat16, device=device)
    with torch.inference_mode():
        sampler.record(logits, CudaGraphs(device))
    full = [
        SamplingParams(seed=1, top_p=0.9),
        SamplingParams(seed=2, top_k=40, top_p=0.8, min_p=0.01, logprobs=3),
        SamplingParams(seed=3, presence_penalty=1.0, frequency_penalty=0.3, logit_bias={7: 5.0}),
        SamplingParams(temperature=0.0, repetition_penalty=1.3, logprobs=20),
    ]
    greedy, plain = SamplingParams(temperature=0.0), SamplingParams(seed=4, temperature=0.7)
    for params in ([greedy] * 8, [plain, greedy] * 4, full * 2):
        sequences = [
            Sequence(str(row), [row, 5, 9, 5], 2, one, choice=row) for row, one in enumerate(params)
        ]
        for step in range(20):
            generator = torch.Generator().manual_seed(step)
            logits.copy_(torch.randn(8, vocabulary, generator=generator) * 2)
            lengths = [len(one.tokens) for one in sequences]
            torch.cuda.set_sync_debug_mode("error")
            try:
                drawn = sampler.draw(logits, sequences, lengths)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            expected = draw(logits.cpu(), sequences, lengths).read()
            for one, mine, theirs in zip(sequences, drawn.read(), expected, strict=True):
                assert mine.token == theirs.token
                one.tokens.append(theirs.token)


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


def test_a_pass_in_slices_of_device_time_gives_the_token_of_a_whole_pass(tmp_path):
    """UNVERIFIED: written without a device. Layers are known to be stored before the pass ends."""
    tiny.make(tmp_path, num_hidden_layers=12)
    config = ModelConfig(path=str(tmp_path), dtype="float32")
    engine = Engine.load(describe(config), KvConfig(blocks=200), config, most_tokens=1)
    greedy = SamplingParams(temperature=0.0, max_tokens=2)
    tokens = [(7 * place) % 250 for place in range(1500)]
    found = []
    for number, for_s in enumerate((None, 1e-4, 0.0)):
        one = Sequence(f"{number}", list(tokens), len(tokens), greedy)
        one.blocks = list(range(94))
        run, known = engine.begin([Span(one, 0, len(tokens))]), []
        while (results := run.advance(for_s)) is None:
            known.append(run.layers_done)
        assert known == sorted(set(known))
        assert for_s is None or known
        found.append(results[0].token)
    assert len(set(found)) == 1
