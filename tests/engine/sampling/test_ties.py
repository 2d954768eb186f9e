"""When rounding may change a sampled token: only where the draw is near an edge, within a bound."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling.counter_rng import uniform
from engine.sampling.sampler import sample
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence
from tests import tiny
from tests.exactness import TIE, is_sampled_tie, tie_of_a_draw

VOCABULARY = 32


def drawn(logits: torch.Tensor, sampling: SamplingParams) -> int:
    token = sample(logits.unsqueeze(0), [Sequence("r", [0, 1, 2], 2, sampling)])[0]
    return token.token


def draw_beside_an_edge(logits, temperature, offset):
    """A seed whose number lies `offset` beside an edge of the distribution, and its edge's tokens.

    No seed gives a number of choice, so the logits of the first token are moved until an edge comes
    to lie beside the number.
    """
    number = uniform(7, 0, 3)
    weights = (logits.double() / temperature).exp()
    rest = weights[1:].sum()
    target = min(max(number - offset, 1e-3), 1 - 1e-3)
    logits = logits.clone()
    logits[0] = temperature * torch.log(target * rest / (1 - target)).item()
    return logits


@given(
    seed=st.integers(0, 10**6),
    temperature=st.floats(0.3, 2.0),
    offset=st.floats(-1e-4, 1e-4),
    signs=st.lists(st.sampled_from([-1.0, 1.0]), min_size=VOCABULARY, max_size=VOCABULARY),
)
def test_logits_that_differ_by_rounding_change_the_token_only_within_the_bound(
    seed, temperature, offset, signs
):
    generator = torch.Generator().manual_seed(seed)
    sampling = SamplingParams(temperature=temperature, seed=7)
    logits = draw_beside_an_edge(torch.randn(VOCABULARY, generator=generator), temperature, offset)
    moved = logits.double() + torch.tensor(signs, dtype=torch.float64) * (0.99 * TIE / 2)
    one, other = drawn(logits.double(), sampling), drawn(moved, sampling)
    if one != other:
        assert is_sampled_tie(logits, sampling, uniform(7, 0, 3), {one, other})


def test_a_token_far_from_the_draw_is_no_tie():
    logits = torch.zeros(4)
    sampling = SamplingParams(temperature=1.0, seed=7)
    assert is_sampled_tie(logits, sampling, 0.25 + 1e-6, {0, 1})
    assert not is_sampled_tie(logits, sampling, 0.25 + 1e-3, {0, 1})
    assert not is_sampled_tie(logits, sampling, 0.25 + 1e-6, {0, 2})
    hot = replace(sampling, temperature=2.0)
    near = 0.25 + TIE / 4 * 0.75
    assert is_sampled_tie(logits, sampling, near, {0, 1})
    assert not is_sampled_tie(logits, hot, near, {0, 1})


def test_a_tie_of_an_answer_is_found_at_its_first_difference(tmp_path):
    """A seed is searched whose draw, after the prompt and two tokens, lies beside an edge."""
    model, prompt, answer = tiny.make(tmp_path).double(), (5, 2, 3), [7, 8]
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[*prompt, *answer]])).logits[0, -1]
    edges = logits.softmax(-1).cumsum(-1)
    beside = {seed: (edges - uniform(seed, 1, 5)).abs().min() for seed in range(20_000)}
    seed = min(beside, key=beside.__getitem__)
    assert beside[seed] < 1e-6
    lower = int((edges - uniform(seed, 1, 5)).abs().argmin())
    sampling = SamplingParams(temperature=1.0, seed=seed)
    want, got = [*answer, lower, 1], [*answer, lower + 1, 9]
    assert tie_of_a_draw(model, prompt, want, sampling, got, choice=1)
    assert not tie_of_a_draw(model, prompt, want, sampling, got, choice=0)
    assert not tie_of_a_draw(model, prompt, want, sampling, [*answer, lower + 9], choice=1)
    assert not tie_of_a_draw(model, prompt, want, sampling, want, choice=1)
