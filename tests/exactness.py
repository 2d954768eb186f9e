"""What the cluster must equal: greedy `generate` of transformers, in float32.

A difference is excused only where the two best logits, computed in float64, lie within 1e-4; of
sampled tokens, where the draw lies within a bound that follows from it beside an edge.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass

import torch

from engine.sampling.counter_rng import uniform
from engine.sampling.penalties import edit_logits
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence
from tests import tiny

NEW_TOKENS = 64
TIE = 1e-4
_BATCH = 16
# On and around the edges of blocks (16) and of chunks (512).
EDGES = (1, 2, 15, 16, 17, 31, 32, 33, 511, 512, 513, 527, 528, 529, 1023, 1024, 1025, 1500)


@dataclass(frozen=True)
class Case:
    """A prompt, how it is sampled, and the tokens that must come out."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    expected: tuple[int, ...]


def make_cases(model: torch.nn.Module, count: int, seed: int = 0) -> list[Case]:
    """`count` prompts of 1 to 1,500 tokens; among them two that end with their first token."""
    rng = random.Random(seed)
    lengths = [*EDGES, *(round(1500 ** rng.random()) for _ in range(count - len(EDGES) - 2))]
    rng.shuffle(lengths)
    greedy = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    prompts = [_random_prompt(rng, length) for length in lengths]
    answers = _generate_all(model, prompts)
    cases = [Case(prompt, greedy, answers[prompt]) for prompt in prompts]
    cases.insert(count // 3, _ending_at_once(model, rng))
    cases.insert(count // 2, _stopping_at_once(cases[0]))
    return cases


def random_case(model: torch.nn.Module, seed: int, prompt_tokens: int, new_tokens: int) -> Case:
    """A random prompt and its greedy answer, each of so many tokens."""
    prompt = _random_prompt(random.Random(seed), prompt_tokens)
    greedy = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
    return Case(prompt, greedy, _generate(model, prompt, new_tokens))


def equal(model: torch.nn.Module, cases: list[Case], answers: list[tuple[int, ...]]) -> bool:
    """Whether all answers are the expected ones, but for ties."""
    return not differences(model, cases, answers)


def differences(
    model: torch.nn.Module, cases: list[Case], answers: list[tuple[int, ...]]
) -> list[str]:
    """Where answers differ from the expected ones, a line for each; ties are none."""
    return [
        f"case {number}, prompt of {len(case.prompt)}: {answer} and not {case.expected}"
        for number, (case, answer) in enumerate(zip(cases, answers, strict=True))
        if answer != case.expected and not excused(model, case, answer)
    ]


def distinct(cases: list[Case]) -> float:
    """Different tokens in an answer, on average over the answers of full length."""
    full = [case.expected for case in cases if len(case.expected) == NEW_TOKENS]
    return sum(len(set(tokens)) for tokens in full) / len(full)


def excused(model: torch.nn.Module, case: Case, got: tuple[int, ...]) -> bool:
    """Whether the first difference is a tie of the two best logits in float64."""
    pairs = enumerate(zip(case.expected, got, strict=False))
    first = next((place for place, (want, have) in pairs if want != have), None)
    if first is None:
        return False
    exact = copy.deepcopy(model).double()
    ids = torch.tensor([[*case.prompt, *case.expected[:first]]])
    with torch.inference_mode():
        logits = exact(input_ids=ids, use_cache=False).logits[0, -1]
    best = torch.topk(logits, 2)
    tied = (best.values[0] - best.values[1]).item() < TIE
    return tied and {case.expected[first], got[first]} == set(best.indices.tolist())


def tie_of_a_draw(
    model: torch.nn.Module,
    prompt: tuple[int, ...],
    answer: list[int],
    sampling: SamplingParams,
    got: list[int],
    choice: int = 0,
) -> bool:
    """Whether rounding alone explains where `got` first differs from `answer`, both sampled.

    The temperature is above 0, the seed is set, and filters are off.
    """
    pairs = enumerate(zip(answer, got, strict=False))
    first = next((place for place, (want, have) in pairs if want != have), None)
    if first is None:
        return False
    before = [*prompt, *answer[:first]]
    with torch.inference_mode():
        exact = copy.deepcopy(model).double()
        logits = exact(input_ids=torch.tensor([before]), use_cache=False).logits[0, -1].clone()
    edit_logits(logits.unsqueeze(0), [Sequence("tie", before, len(prompt), sampling)])
    assert sampling.seed is not None
    number = uniform(sampling.seed, choice, len(before))
    return is_sampled_tie(logits, sampling, number, {answer[first], got[first]})


def is_sampled_tie(
    logits: torch.Tensor, sampling: SamplingParams, number: float, tokens: set[int]
) -> bool:
    """Whether the draw of `number` in [0, 1) may give either of two tokens by rounding alone.

    `logits` has float64 values of one position. A tie lets two logits differ by TIE, so each by
    half of it. The edge between two tokens, a probability p, then moves by at most
    2 p (1 - p) (TIE / 2) / temperature, and that by at most TIE / (4 temperature). Filters are off.
    """
    edges = (logits.double() / sampling.temperature).softmax(-1).cumsum(-1)
    bound = TIE / (4 * sampling.temperature)
    around = torch.tensor([max(0.0, number - bound), min(number + bound, 1.0)], dtype=torch.float64)
    first, last = torch.searchsorted(edges, around, right=True).tolist()
    return all(first <= token <= last for token in tokens)


def _random_prompt(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(256) for _ in range(length))


def _generate_all(
    model: torch.nn.Module, prompts: list[tuple[int, ...]]
) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The greedy answers by prompt. Prompts of like lengths share a batch: it has fewer steps."""
    ordered, found = sorted(prompts, key=len), {}
    for first in range(0, len(ordered), _BATCH):
        batch = ordered[first : first + _BATCH]
        width = len(batch[-1])
        rows = [((0,) * (width - len(one)) + one, width - len(one)) for one in batch]
        out = model.generate(
            torch.tensor([row for row, _ in rows]),
            attention_mask=torch.tensor([[0] * pad + [1] * (width - pad) for _, pad in rows]),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        found |= zip(batch, map(tuple, out[:, width:].tolist()), strict=True)
    return found


def _generate(
    model: torch.nn.Module, prompt: tuple[int, ...], most: int, eos: int | None = None
) -> tuple[int, ...]:
    out = model.generate(
        torch.tensor([prompt]), max_new_tokens=most, do_sample=False, eos_token_id=eos
    )
    return tuple(out[0, len(prompt) :].tolist())


def _ending_at_once(model: torch.nn.Module, rng: random.Random) -> Case:
    """A prompt whose first greedy token is the end token, found by trying."""
    for _ in range(200):
        prompts = [_random_prompt(rng, 8) for _ in range(64)]
        with torch.inference_mode():
            best = model(input_ids=torch.tensor(prompts)).logits[:, -1].argmax(-1).tolist()
        if tiny.EOS in best:
            prompt = prompts[best.index(tiny.EOS)]
            expected = _generate(model, prompt, NEW_TOKENS, eos=tiny.EOS)
            assert expected == (tiny.EOS,)
            return Case(prompt, SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS), expected)
    raise AssertionError("no prompt of this model ends at once")


def _stopping_at_once(case: Case) -> Case:
    """The same prompt, with its first token as a stop token."""
    first = case.expected[0]
    sampling = SamplingParams(
        temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, stop_token_ids=(first,)
    )
    return Case(case.prompt, sampling, (first,))
