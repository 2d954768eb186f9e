"""Scores of a prompt's own tokens: what transformers' log_softmax gives, in pieces and chunks."""

import random

import pytest
import torch

from engine import kernels
from engine.config import KvConfig, ModelConfig
from engine.errors import Internal
from engine.kv.block_pool import BlockPool
from engine.model.ops_torch import TorchOps
from engine.model_description import describe
from engine.runtime.engine import Engine
from engine.sampling import scorer
from engine.scheduling.prefix_cache import PrefixCache
from engine.types.sampling_params import SamplingParams
from engine.types.scores import Scores, Scoring
from engine.types.sequence import SampledToken, ScoredSpan, Sequence, Span, collected
from tests.engine.families import SERVED, VOCABULARY, save

BLOCKS = 120
CHUNK = 96
TOP = 3
LENGTHS = (1, 2, 17, 200)
WAYS = [
    ("llama", "compact"),
    ("llama-tied", "transformers"),
    ("qwen2-sliding", "compact"),
    ("qwen3", "transformers"),
    ("phi", "compact"),
    ("phi", "transformers"),
    ("gemma2-softcap-sliding", "compact"),
    ("gemma2-softcap-sliding", "transformers"),
    ("olmo2", "transformers"),
    ("mixtral", "compact"),
    ("mixtral", "transformers"),
    ("gpt-oss-sinks", "compact"),
    ("gpt-oss-sinks", "transformers"),
]


def load(folder, family, forward, dtype="float32", operations="auto"):
    reference = save(folder, *SERVED[family])
    config = ModelConfig(path=str(folder), dtype=dtype, forward=forward, operations=operations)
    engine = Engine.load(describe(config), KvConfig(blocks=BLOCKS), config, most_tokens=1)
    return reference, engine


def sequences(prompts, first=1, top=TOP):
    """One for each prompt, over blocks out of order."""
    blocks = random.Random(1).sample(range(BLOCKS), BLOCKS)
    made = []
    for number, prompt in enumerate(prompts):
        scoring = Scoring(min(first, len(prompt)), top, len(prompt))
        greedy = SamplingParams(temperature=0.0, max_tokens=1)
        new = Sequence(str(number), list(prompt), len(prompt), greedy, scoring=scoring)
        needed = -(-len(prompt) // 16)
        new.blocks, blocks = blocks[:needed], blocks[needed:]
        made.append(new)
    return made


def compute(engine, running):
    """All at once, in chunks; returns the sampled tokens."""
    tokens = {}
    while left := [s for s in running if s.remaining]:
        spans = [Span(s, s.computed, min(CHUNK, s.remaining)) for s in left]
        for span, outcome in zip(spans, engine.forward(spans), strict=True):
            token = collected(span, outcome)
            span.sequence.computed += span.count
            if token is not None:
                tokens[span.sequence.owner] = token.token
    return tokens


def expected(model, prompt):
    """[tokens - 1, vocabulary]: the log-probabilities behind each token but the last."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0]
    return logits.float().log_softmax(-1)


def random_prompts():
    rng = random.Random(0)
    return [[rng.randrange(3, VOCABULARY) for _ in range(length)] for length in LENGTHS]


def assert_scores(scores, table, prompt, first, tolerance):
    rows = table[first - 1 : len(prompt) - 1]
    want = rows.gather(1, torch.tensor(prompt[first:]).unsqueeze(1)).squeeze(1)
    got = torch.tensor(scores.logprobs)
    assert got.shape == want.shape
    torch.testing.assert_close(got, want, atol=tolerance, rtol=0)
    values = torch.tensor(scores.top_logprobs).view(-1, TOP)
    torch.testing.assert_close(values, rows.topk(TOP).values, atol=tolerance, rtol=0)
    ids = torch.tensor(scores.top_ids, dtype=torch.long).view(-1, TOP)
    torch.testing.assert_close(rows.gather(1, ids), values, atol=tolerance, rtol=0)


@pytest.mark.parametrize(("family", "forward"), WAYS)
def test_scores_equal_the_scores_of_transformers(family, forward, tmp_path):
    reference, engine = load(tmp_path, family, forward)
    prompts = random_prompts()
    for first in (1, 9):
        scored = sequences(prompts, first)
        sampled = compute(engine, scored)
        for prompt, sequence in zip(prompts, scored, strict=True):
            table = expected(reference, prompt)
            begin = min(first, len(prompt))
            assert_scores(sequence.scoring.scores(), table, prompt, begin, 1e-4)
            assert sampled[sequence.owner] == table[-1].argmax().item()


def test_c_operations_come_close_in_bfloat16(tmp_path):
    if kernels.why_not_loaded() is not None:
        pytest.skip(kernels.why_not_loaded())
    name, extra = SERVED["llama"]
    reference = save(tmp_path, name, {**extra, "head_dim": 32, "initializer_range": 0.05})
    config = ModelConfig(path=str(tmp_path), dtype="bfloat16", operations="cpp")
    engine = Engine.load(describe(config), KvConfig(blocks=BLOCKS), config, most_tokens=1)
    prompts = random_prompts()
    scored = sequences(prompts)
    compute(engine, scored)
    for prompt, sequence in zip(prompts, scored, strict=True):
        assert_scores(sequence.scoring.scores(), expected(reference, prompt), prompt, 1, 0.05)


def test_no_more_rows_of_logits_exist_than_a_piece_has(tmp_path, monkeypatch):
    monkeypatch.setattr(scorer, "PIECE_ROWS", 8)
    _, engine = load(tmp_path, "llama", "compact")
    asked = []
    logits = TorchOps.logits
    monkeypatch.setattr(
        TorchOps, "logits", lambda ops, x, head: asked.append(len(x)) or logits(ops, x, head)
    )
    compute(engine, sequences([random_prompts()[3]]))
    assert max(asked) == 8
    assert sum(asked) == LENGTHS[3] - 1 + 1


def test_a_pass_is_cut_between_pieces_and_counts_layers_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(scorer, "PIECE_ROWS", 8)
    _, engine = load(tmp_path, "llama", "compact")
    (sequence,) = sequences([random_prompts()[3][:60]])
    run = engine.begin([Span(sequence, 0, 60)])
    slices, layers = 0, []
    while (results := run.advance(0.0)) is None:
        slices += 1
        layers.append(run.layers_done)
    # Two ends of layers, and eight pieces of the 59 rows.
    assert layers == [1, 2] + [3] * 8
    assert isinstance(results[0], ScoredSpan)
    assert isinstance(results[0].token, SampledToken)


def test_scores_of_other_sequences_and_none_do_not_mix(tmp_path):
    reference, engine = load(tmp_path, "llama", "compact")
    prompts = random_prompts()
    mixed = sequences(prompts)
    mixed[1].scoring = None
    mixed[2].scoring = Scoring(4, 0, len(prompts[2]))
    spans = [Span(s, 0, s.remaining) for s in mixed]
    results = engine.forward(spans)
    assert isinstance(results[1], SampledToken)
    for span, outcome in zip(spans, results, strict=True):
        collected(span, outcome)
    assert_scores(mixed[3].scoring.scores(), expected(reference, prompts[3]), prompts[3], 1, 1e-4)
    only = mixed[2].scoring.scores()
    assert len(only.logprobs) == LENGTHS[2] - 4
    assert only.top_ids == only.top_logprobs == []


def test_overflowing_numbers_fail_their_sequence_alone(tmp_path):
    _, engine = load(tmp_path, "llama", "compact")
    prompts = random_prompts()
    bad, good = sequences([prompts[2], prompts[3]])
    engine.forward([Span(bad, 0, 3)])
    engine.cache.layers[0][:, bad.blocks[0]] = float("nan")
    results = engine.forward([Span(bad, 3, 9), Span(good, 0, 50)])
    assert isinstance(results[0], Internal)
    assert isinstance(results[1], ScoredSpan)


def test_a_cached_prefix_ends_before_the_first_scored_token():
    pool = BlockPool(20)
    cache = PrefixCache(pool, 4, "model", "prefill")
    tokens = list(range(16))
    plain = Sequence("a", tokens, 16, SamplingParams())
    assert cache.start(plain)
    plain.computed = 16
    cache.publish(plain)
    for first, cached in ((1, 0), (4, 0), (5, 4), (9, 8), (12, 8), (16, 12)):
        asked = Sequence("b", tokens, 16, SamplingParams(), scoring=Scoring(first, 0, 16))
        assert cache.start(asked)
        assert asked.computed == cached
        cache.stop(asked)


def test_scores_may_come_twice_and_must_all_come():
    scoring = Scoring(2, 1, 6)
    assert scoring.within(0, 3) == range(2, 4)
    assert scoring.within(5, 1) == range(6, 6)
    scoring.take(2, Scores([-1.0, -2.0], [1, 2], [-0.1, -0.2]))
    with pytest.raises(Internal, match="2 tokens were not scored"):
        scoring.scores()
    scoring.take(3, Scores([-2.0, -3.0, -4.0], [2, 3, 4], [-0.2, -0.3, -0.4]))
    assert scoring.scores() == Scores([-1, -2, -3, -4], [1, 2, 3, 4], [-0.1, -0.2, -0.3, -0.4])
    with pytest.raises(Internal):
        Scoring(0, 1, 6)
