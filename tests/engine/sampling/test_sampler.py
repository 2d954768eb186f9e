"""The sampler against plain float64 references, one per feature."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.errors import Internal
from engine.sampling.counter_rng import uniform
from engine.sampling.sampler import sample
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence

GREEDY = SamplingParams(temperature=0.0)


def sequence(sampling, tokens=(0, 1, 2), prompt_tokens=2, choice=0):
    return Sequence("r", list(tokens), prompt_tokens, sampling, choice=choice)


def logits_of(seed, rows=1, vocabulary=50, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocabulary, generator=generator) * scale


def reference_scores(logits, seq):
    """Logits after penalties and biases, float64."""
    scores = [float(value) for value in logits]
    p = seq.sampling
    for token in set(seq.tokens):
        factor = p.repetition_penalty
        scores[token] = scores[token] * factor if scores[token] < 0 else scores[token] / factor
    output = seq.tokens[seq.prompt_tokens :]
    for token in set(output):
        scores[token] -= output.count(token) * p.frequency_penalty + p.presence_penalty
    for token, bias in p.logit_bias.items():
        scores[token] += bias
    return np.array(scores)


def reference_kept(scores, p):
    """Filters one after the other, each renormalising; equals of the last kept stay."""
    kept = np.ones(len(scores), dtype=bool)
    probabilities = np.exp((scores - scores.max()) / p.temperature)
    if 0 < p.top_k < len(scores):
        kept &= scores >= np.sort(scores)[-p.top_k]
    order = np.argsort(-scores, kind="stable")
    if p.top_p < 1.0:
        ranked = probabilities[order][: p.top_k or None]
        before = np.concatenate([[0.0], np.cumsum(ranked)[:-1]])
        count = max(1, int((before < p.top_p * ranked.sum()).sum()))
        kept &= scores >= scores[order[count - 1]]
    kept &= probabilities >= p.min_p * probabilities.max()
    return kept


def assert_draw(token, scores, seq, slack=1e-6):
    """`token` is kept, and the uniform number lies in its part of the distribution."""
    kept = reference_kept(scores, seq.sampling)
    assert kept.any()
    weights = np.where(kept, np.exp((scores - scores.max()) / seq.sampling.temperature), 0.0)
    edges = np.concatenate([[0.0], np.cumsum(weights / weights.sum())])
    number = uniform(seq.sampling.seed, seq.choice, len(seq.tokens))
    assert kept[token]
    assert edges[token] - slack <= number <= edges[token + 1] + slack


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 2, 7, 49, 50, 1000]),
    top_p=st.sampled_from([1e-9, 0.1, 0.55, 0.93, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.03, 0.4, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 0.8, 1.3]),
    presence_penalty=st.sampled_from([0.0, -1.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, -0.3, 0.7]),
    logit_bias=st.dictionaries(st.integers(0, 49), st.floats(-100, 100, width=16), max_size=4),
    seed=st.integers(0, 2**64 - 1),
)
TOKENS = st.lists(st.integers(0, 49), min_size=1, max_size=30)


@settings(max_examples=300, deadline=None)
@given(PARAMS, TOKENS, st.integers(0, 30), st.integers(0, 5), st.integers(0, 2**31))
def test_everything_together_matches_the_reference(params, tokens, prompt, choice, seed):
    logits = logits_of(seed)
    seq = sequence(params, tokens, min(prompt, len(tokens)), choice)
    [drawn] = sample(logits, [seq])
    # Edits in the reference are rounded as the sampler's, so that equals stay equal.
    scores = reference_scores(logits[0], seq).astype(np.float32).astype(np.float64)
    gaps = np.diff(np.sort(scores))
    if gaps[gaps > 0].min() > 1e-5:
        assert_draw(drawn.token, scores, seq)


@settings(max_examples=200, deadline=None)
@given(PARAMS, st.sampled_from([0.1, 3.0, 12.0]), st.integers(0, 2**31))
def test_a_wide_vocabulary_matches_the_reference(params, scale, seed):
    plain = replace(params, presence_penalty=0.0, frequency_penalty=0.0, logit_bias={})
    seq = sequence(replace(plain, repetition_penalty=1.0))
    logits = logits_of(seed, vocabulary=3000, scale=scale)
    [drawn] = sample(logits, [seq])
    assert_draw(drawn.token, logits[0].double().numpy(), seq)


@settings(max_examples=200, deadline=None)
@given(st.lists(PARAMS | st.just(GREEDY), min_size=2, max_size=8), st.integers(0, 2**31), st.data())
def test_a_row_is_the_same_alone_and_in_any_batch(params, seed, data):
    vocabulary = data.draw(st.sampled_from([50, 4000]))
    logits = logits_of(seed, rows=len(params), vocabulary=vocabulary)
    sequences = [
        sequence(replace(p, logprobs=row % 3 or None), tokens=range(row + 3))
        for row, p in enumerate(params)
    ]
    alone = [sample(logits[row : row + 1], [s])[0] for row, s in enumerate(sequences)]
    assert sample(logits, sequences) == alone
    order = data.draw(st.permutations(range(len(params))))
    mixed = sample(logits[order], [sequences[row] for row in order])
    assert mixed == [alone[row] for row in order]


@given(PARAMS, st.sampled_from([torch.bfloat16, torch.float16, torch.float64]))
@settings(max_examples=50, deadline=None)
def test_any_dtype_with_many_equal_logits(params, dtype):
    logits = logits_of(3).round().to(dtype)
    before = logits.clone()
    seq = sequence(replace(params, repetition_penalty=1.0))
    [drawn] = sample(logits, [seq])
    scores = reference_scores(logits[0], seq).astype(np.float32).astype(np.float64)
    assert_draw(drawn.token, scores, seq)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("seed", range(5))
def test_filters_keep_what_transformers_keeps(seed):
    logits = logits_of(seed, vocabulary=200)
    cases = [
        (SamplingParams(top_k=9), TopKLogitsWarper(9)),
        (SamplingParams(top_p=0.8), TopPLogitsWarper(0.8)),
        (SamplingParams(min_p=0.05), MinPLogitsWarper(0.05)),
    ]
    for params, warper in cases:
        expected = warper(None, logits.clone()).isfinite()[0].numpy()
        assert (reference_kept(logits[0].double().numpy(), params) == expected).all()


def test_repetition_penalty_matches_transformers():
    logits = logits_of(1)
    tokens = [3, 3, 9, 20, 41, 9]
    expected = RepetitionPenaltyLogitsProcessor(1.4)(torch.tensor([tokens]), logits.clone())
    seq = sequence(replace(GREEDY, repetition_penalty=1.4), tokens, 2)
    assert np.allclose(reference_scores(logits[0], seq), expected[0])


def greedy(logits, params, tokens, prompt_tokens):
    return sample(torch.tensor([logits]), [sequence(params, tokens, prompt_tokens)])[0].token


def test_each_penalty_moves_the_best_token():
    logits = [4.0, 3.9, -1.0]
    assert greedy(logits, replace(GREEDY, repetition_penalty=1.1), [0], 1) == 1  # prompt counts
    assert greedy([-1.0, -1.05], replace(GREEDY, repetition_penalty=1.1), [0], 1) == 1
    presence = replace(GREEDY, presence_penalty=0.2)
    assert greedy(logits, presence, [0], 1) == 0  # the prompt does not count
    assert greedy(logits, presence, [0, 0], 1) == 1
    frequency = replace(GREEDY, frequency_penalty=0.06)
    assert greedy(logits, frequency, [2, 0], 1) == 0
    assert greedy(logits, frequency, [2, 0, 0], 1) == 1
    both = replace(GREEDY, presence_penalty=0.08, frequency_penalty=0.005)
    assert greedy(logits, both, [0, 0, 0, 0], 1) == 0  # 0.08 once, not three times
    assert greedy(logits, replace(GREEDY, logit_bias={2: 5.5}), [0], 1) == 2
    assert greedy(logits, replace(GREEDY, logit_bias={0: -100.0}), [0], 1) == 1


def test_one_token_survives_the_strictest_filters():
    strict = SamplingParams(temperature=100.0, top_k=1, top_p=1e-300, min_p=1.0, seed=1)
    logits = logits_of(7, rows=3)
    assert [t.token for t in sample(logits, [sequence(strict)] * 3)] == logits.argmax(1).tolist()


def test_top_p_of_zero_keeps_the_best_token():
    logits = logits_of(7, rows=3)
    for seed in range(20):
        none = SamplingParams(temperature=5.0, top_p=0.0, seed=seed)
        found = [t.token for t in sample(logits, [sequence(none)] * 3)]
        assert found == logits.argmax(1).tolist()


def test_a_temperature_near_zero_is_greedy():
    logits = logits_of(8, rows=3)
    cold = SamplingParams(temperature=1e-300, top_p=0.5, seed=1)
    assert [t.token for t in sample(logits, [sequence(cold)] * 3)] == logits.argmax(1).tolist()


def test_the_ends_of_the_unit_interval_give_tokens_that_are_possible(monkeypatch):
    logits = torch.full((1, 9), -torch.inf)
    logits[0, 3], logits[0, 6] = 0.1, 0.2
    for number, token in ((0.0, 3), (1.0 - 2.0**-53, 6)):
        monkeypatch.setattr("engine.sampling.sampler.uniform", lambda *_, number=number: number)
        for params in (SamplingParams(seed=0), SamplingParams(seed=0, min_p=0.01)):
            assert sample(logits, [sequence(params)])[0].token == token


def test_top_p_takes_its_share_of_what_top_k_left():
    logits = torch.tensor([[0.4, 0.39, 0.21]] * 2).log()
    for seed in range(50):
        narrow = SamplingParams(top_k=2, top_p=0.45, seed=seed)
        other = SamplingParams(top_k=3 - seed % 2, top_p=0.45, seed=seed)
        wide = torch.cat([logits, torch.full((2, 5), -30.0)], dim=1)
        assert sample(wide, [sequence(narrow), sequence(other)])[0].token == 0


def test_tokens_with_no_probability_are_never_drawn():
    logits = torch.full((1, 8), -torch.inf)
    logits[0, 3] = -1e30
    for seed in range(50):
        assert sample(logits, [sequence(SamplingParams(seed=seed))])[0].token == 3


def test_top_p_reaches_past_a_wide_flat_head():
    # Nearly flat over a large vocabulary, so that thousands of tokens are needed.
    logits = logits_of(11, rows=2, vocabulary=9000, scale=0.01)
    for seed in range(20):
        params = SamplingParams(top_p=0.9, seed=seed)
        sharp = logits.clone()
        sharp[1, 77] = 12.0
        for row, drawn in enumerate(sample(sharp, [sequence(params)] * 2)):
            assert_draw(drawn.token, sharp[row].double().numpy(), sequence(params))


def test_logprobs_are_of_the_raw_logits():
    logits = logits_of(2, rows=4).bfloat16()
    biased = replace(GREEDY, logit_bias={5: 100.0}, logprobs=3)
    sequences = [
        sequence(GREEDY),
        sequence(biased),
        sequence(replace(GREEDY, logprobs=0)),
        sequence(SamplingParams(temperature=2.0, top_k=1, seed=0, logprobs=20)),
    ]
    expected = logits.double() - logits.double().logsumexp(1, keepdim=True)
    none, three, zero, twenty = sample(logits, sequences)
    assert none.logprob is None and none.top == ()
    assert three.token == 5
    assert three.logprob == pytest.approx(expected[1, 5].item(), abs=1e-5)
    assert len(three.top) == 3
    assert zero.logprob == pytest.approx(expected[2].max().item(), abs=1e-5)
    assert zero.top == ()
    assert len(twenty.top) == 20
    for drawn, row in ((three, 1), (twenty, 3)):
        best = sorted(expected[row].tolist(), reverse=True)[: len(drawn.top)]
        assert [value for _, value in drawn.top] == pytest.approx(best, abs=1e-5)
        for token, value in drawn.top:
            assert value == pytest.approx(expected[row, token].item(), abs=1e-5)


def test_logprobs_of_a_tiny_vocabulary():
    [drawn] = sample(logits_of(2, vocabulary=4), [sequence(replace(GREEDY, logprobs=20))])
    assert len(drawn.top) == 4
    assert math.fsum(math.exp(value) for _, value in drawn.top) == pytest.approx(1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        replace(GREEDY, presence_penalty=1.0),
        replace(GREEDY, logprobs=2),
        SamplingParams(seed=1),
        SamplingParams(seed=1, logprobs=2),
        SamplingParams(seed=1, top_k=5, top_p=0.5),
        SamplingParams(seed=1, top_p=0.5),
        SamplingParams(seed=1, min_p=0.5),
    ],
)
def test_a_row_of_bad_logits_fails_alone(params, value):
    logits = logits_of(1, rows=2)
    alone = sample(logits[:1], [sequence(params)])
    logits[1] = value
    good, bad = sample(logits, [sequence(params)] * 2)
    assert [good] == alone
    assert isinstance(bad, Internal)
    assert "NaN or infinite" in bad.message
    if math.isnan(value):
        logits[0, 17] = value
        assert isinstance(sample(logits[:1], [sequence(params)])[0], Internal)


def test_wrong_calls_are_errors():
    assert sample(torch.empty(0, 5), []) == []
    with pytest.raises(Internal, match="shape"):
        sample(logits_of(1, rows=2), [sequence(GREEDY)])
    with pytest.raises(Internal, match="without a seed"):
        sample(logits_of(1), [sequence(SamplingParams())])


def test_draws_follow_the_distribution():
    params = SamplingParams(temperature=0.8, top_k=40, top_p=0.97, seed=12345)
    logits = logits_of(5, vocabulary=60, scale=1.0)
    draws = 20_000
    sequences = [sequence(params, [0] * (1 + n % 100), 1, choice=n // 100) for n in range(draws)]
    counts = np.bincount(
        [t.token for t in sample(logits.expand(draws, -1), sequences)], minlength=60
    )
    scores = logits[0].double().numpy()
    kept = reference_kept(scores, params)
    expected = np.where(kept, np.exp(scores / 0.8), 0.0)
    expected *= draws / expected.sum()
    assert (counts[~kept] == 0).all()
    freedom = kept.sum() - 1
    statistic = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


def test_the_global_generator_is_not_used():
    before = torch.random.get_rng_state()
    sample(logits_of(1), [sequence(SamplingParams(seed=3))])
    assert torch.equal(torch.random.get_rng_state(), before)
