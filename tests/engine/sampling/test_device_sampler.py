"""The device's sampler, in Triton's interpreter, gives the tokens of the torch sampler."""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from engine.errors import Internal
from engine.grammar.masks import TokenMasks
from engine.sampling.device_sampler import DeviceSampler
from engine.sampling.sampler import draw
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="triton is not installed"
    ),
    # NumPy computes what the interpreter interprets, and warns of NaN and infinity.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

ROWS = 4
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GREEDY = SamplingParams(temperature=0.0)


def sampler(vocabulary, rows=ROWS):
    return DeviceSampler(rows, vocabulary, DEVICE)


def logits_of(seed, rows, vocabulary, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocabulary, generator=generator) * scale


def sequences_of(params, tokens=(1, 0, 1, 2), prompt_tokens=2):
    return [
        Sequence(f"{row}", [token % 40 for token in tokens], prompt_tokens, one, choice=row)
        for row, one in enumerate(params)
    ]


def assert_same(subject, logits, sequences, masks=None):
    """Tokens and faults are equal, and log-probabilities as near as float32 is."""
    lengths = [len(one.tokens) for one in sequences]
    got = subject.draw(logits.to(DEVICE), sequences, lengths, masks).read()
    expected = draw(logits, sequences, lengths, masks).read()
    for mine, theirs in zip(got, expected, strict=True):
        if isinstance(theirs, Internal):
            assert isinstance(mine, Internal) and mine.message == theirs.message
            continue
        assert mine.token == theirs.token
        if theirs.logprob is None:
            assert mine.logprob is None
        else:
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-5, nan_ok=True)
        values = [value for _, value in theirs.top]
        assert [value for _, value in mine.top] == pytest.approx(values, abs=1e-5, nan_ok=True)
    return got


def masks_of(seed, sequences, vocabulary, share=0.9):
    banned = np.random.default_rng(seed).random((len(sequences), vocabulary)) < share
    banned[:, seed % vocabulary] = False
    # As llguidance's words: no token lies behind the vocabulary, so none is allowed there.
    width = -(-vocabulary // 32) * 32
    wide = np.ones((len(sequences), width), bool)
    wide[:, :vocabulary] = banned
    bits = np.packbits(wide, axis=1, bitorder="little")
    return TokenMasks(banned, bits, {one.owner: row for row, one in enumerate(sequences)}, {})


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-300, 0.1, 0.7, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 2, 7, 39, 40, 1000]),
    top_p=st.sampled_from([0.0, 1e-9, 0.1, 0.55, 0.93, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.03, 0.4, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 0.8, 1.3]),
    presence_penalty=st.sampled_from([0.0, -1.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, -0.3, 0.7]),
    logit_bias=st.dictionaries(st.integers(0, 39), st.floats(-100, 100, width=16), max_size=4),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.sampled_from([None, None, 0, 3, 20]),
)
FILTERS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 0, 1, 9, 300, 4999]),
    top_p=st.sampled_from([0.2, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.05]),
    seed=st.integers(0, 2**64 - 1),
)
# Kinds of logits: distinct, many ties, impossible tokens, one possible token, wrong numbers.
KINDS = ("distinct", "ties", "impossible", "single", "nan", "infinite", "nothing")


def spoiled(logits, kinds):
    for row, kind in enumerate(kinds):
        if kind == "ties":
            logits[row] = logits[row].round()
        elif kind == "impossible":
            logits[row, logits[row] < 0] = -math.inf
        elif kind == "single":
            kept = row % logits.shape[1]
            value = logits[row, kept].item()
            logits[row] = -math.inf
            logits[row, kept] = value
        elif kind == "nan":
            logits[row, row % logits.shape[1]] = math.nan
        elif kind == "infinite":
            logits[row, row % logits.shape[1]] = math.inf
        elif kind == "nothing":
            logits[row] = -math.inf
    return logits


@settings(max_examples=20)
@given(
    params=st.lists(PARAMS, min_size=1, max_size=ROWS),
    kinds=st.lists(st.sampled_from(KINDS), min_size=ROWS, max_size=ROWS),
    tokens=st.lists(st.integers(0, 39), min_size=1, max_size=20),
    prompt=st.integers(1, 20),
    guided=st.sets(st.integers(0, ROWS - 1)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**31),
)
def test_every_mix_gives_the_tokens_of_the_reference(
    params, kinds, tokens, prompt, guided, dtype, seed
):
    logits = spoiled(logits_of(seed, len(params), 40), kinds[: len(params)]).to(dtype)
    sequences = sequences_of(params, tokens, min(prompt, len(tokens)))
    with_mask = [one for row, one in enumerate(sequences) if row in guided]
    masks = masks_of(seed, with_mask, 40) if with_mask else None
    assert_same(sampler(40), logits, sequences, masks)


@settings(max_examples=5)
@given(
    params=st.lists(FILTERS, min_size=2, max_size=2),
    scale=st.sampled_from([0.01, 1.0, 12.0]),
    seed=st.integers(0, 2**31),
)
def test_filters_over_several_tiles_give_the_tokens_of_the_reference(params, scale, seed):
    assert_same(sampler(5000), logits_of(seed, 2, 5000, scale), sequences_of(params))


@pytest.mark.parametrize("vocabulary", [1, 2, 7, 2048, 2049])
def test_vocabularies_of_any_size(vocabulary):
    params = [
        replace(GREEDY, logprobs=5),
        SamplingParams(seed=3),
        SamplingParams(seed=4, top_k=3, top_p=0.9),
        SamplingParams(seed=5, min_p=0.5, logit_bias={vocabulary - 1: 3.0}, logprobs=20),
    ]
    sequences = sequences_of(params, tokens=(0, 0), prompt_tokens=1)
    assert_same(sampler(vocabulary), logits_of(vocabulary, 4, vocabulary), sequences)


def test_all_tokens_alike_are_drawn_as_by_the_reference():
    for number in range(6):
        params = [
            SamplingParams(seed=number),
            SamplingParams(seed=number, top_p=0.5),
            SamplingParams(seed=number, top_k=3),
            replace(GREEDY, logprobs=2),
        ]
        signs = torch.tensor([0.0, -0.0]).repeat(20)
        got = assert_same(sampler(40), signs.expand(4, 40).clone(), sequences_of(params))
        assert got[3].token == 0 and [token for token, _ in got[3].top] == [0, 1]


def test_more_rows_than_the_buffers_have():
    params = [SamplingParams(seed=1, presence_penalty=0.5, logprobs=row % 3) for row in range(9)]
    assert_same(sampler(40), logits_of(2, 9, 40), sequences_of(params))


@settings(max_examples=5)
@given(data=st.data(), seed=st.integers(0, 2**31))
def test_rows_that_come_go_and_move_over_many_draws(data, seed):
    """One sampler for all draws: what an earlier draw left in the buffers changes nothing."""
    subject, params = sampler(40), data.draw(st.lists(PARAMS, min_size=6, max_size=6))
    sequences = sequences_of(params)
    for step in range(5):
        rows = data.draw(st.lists(st.sampled_from(sequences), max_size=ROWS, unique_by=id))
        if not rows:
            continue
        masked = rows[:1] if data.draw(st.booleans()) else []
        masks = masks_of(step, masked, 40) if masked else None
        got = assert_same(subject, logits_of(seed + step, len(rows), 40), rows, masks)
        for one, outcome in zip(rows, got, strict=True):
            if data.draw(st.booleans()):  # else the step was in vain, as after a preemption
                one.tokens.append(outcome.token)


def test_a_row_may_follow_its_own_draw_and_nothing_else():
    """Penalties count a token that the host does not know yet."""
    params = SamplingParams(
        seed=7, presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.2
    )
    for greedy in (False, True):
        one = replace(params, temperature=0.0 if greedy else 1.0)
        [ahead], [turn] = sequences_of([one]), sequences_of([one])
        subject, drawn = sampler(40), []
        for step in range(6):
            logits = logits_of(step // 3, 1, 40, 1.0)
            drawn.append(subject.draw(logits.to(DEVICE), [ahead], [len(turn.tokens)]))
            [expected] = draw(logits, [turn], [len(turn.tokens)]).read()
            turn.tokens.append(expected.token)
            if step:  # read one step late
                ahead.tokens.append(drawn[step - 1].read()[0].token)
        assert [*ahead.tokens, drawn[-1].read()[0].token] == turn.tokens
    [stranger] = sequences_of([replace(params)])
    with pytest.raises(Internal, match="has 4 tokens, and a draw behind 5"):
        sampler(40).draw(logits.to(DEVICE), [stranger], [5])


def test_a_new_sequence_of_the_same_name_counts_anew():
    subject = sampler(40)
    params = SamplingParams(temperature=0.0, presence_penalty=2.0)
    assert_same(subject, logits_of(1, 1, 40), sequences_of([params], (1, 2, 3, 4)))
    assert_same(subject, logits_of(1, 1, 40), sequences_of([replace(params)], (9, 8, 7, 6, 5)))


def test_a_row_without_a_token_gets_the_fault_of_its_mask():
    sequences = sequences_of([GREEDY, GREEDY, SamplingParams(seed=1)])
    masks = masks_of(0, sequences[:2], 40)
    masks.banned[1] = True
    masks.bits[1] = 255
    masks = replace(masks, faults={"1": Internal("no token")})
    _, second, _ = assert_same(sampler(40), logits_of(1, 3, 40), sequences, masks)
    assert second.message == "no token"


def test_wrong_calls_are_errors():
    assert sampler(40).draw(torch.empty(0, 40), [], []).read() == []
    with pytest.raises(Internal, match="shape"):
        sampler(40).draw(logits_of(1, 2, 40), sequences_of([GREEDY]), [4])
    with pytest.raises(Internal, match="without a seed"):
        sampler(40).draw(logits_of(1, 1, 40), sequences_of([SamplingParams()]), [4])


def test_a_refused_draw_leaves_nothing_behind():
    subject = sampler(40)
    good = sequences_of([SamplingParams(seed=row, presence_penalty=1.0) for row in range(4)])
    assert_same(subject, logits_of(1, 4, 40), good)
    biased, bad = sequences_of([replace(GREEDY, logit_bias={9: 50.0}), SamplingParams(top_k=3)])
    with pytest.raises(Internal, match="without a seed"):
        subject.draw(logits_of(1, 2, 40).to(DEVICE), [biased, bad], [4, 4])
    assert_same(subject, logits_of(2, 1, 40), [biased])
    assert_same(subject, logits_of(3, 2, 40), good[:2])
    assert_same(subject, logits_of(4, 4, 40), good)


def recording(launched):
    """As a CUDA graph: it writes to the addresses of its first results."""

    def record(step):
        out = step()

        def replay():
            launched.append(step)
            return out.copy_(step())

        return replay

    return record


def test_draws_from_recorded_logits_are_replayed():
    subject, launched = sampler(40), []
    kept = torch.zeros(4, 40, device=DEVICE)
    subject.record(kept, recording(launched))
    kinds = [
        [GREEDY] * 3,
        [GREEDY, SamplingParams(seed=1), GREEDY],
        [SamplingParams(seed=2, top_p=0.8), replace(GREEDY, repetition_penalty=1.3), GREEDY],
    ]
    for number, params in enumerate([*kinds, *kinds]):
        sequences = sequences_of(params)
        kept.copy_(logits_of(number, 4, 40))
        lengths = [len(one.tokens) for one in sequences]
        got = subject.draw(kept[:3], sequences, lengths).read()
        assert got == draw(kept[:3].cpu(), sequences, lengths).read()
        assert len(launched) == number + 1
    subject.draw(kept[:3].clone(), sequences, lengths)
    assert len(launched) == 6, "other logits have no recording"


class Calls(TorchDispatchMode):
    """Counts what torch computes."""

    def __init__(self):
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def test_a_draw_waits_for_nothing_and_copies_its_inputs_once(monkeypatch):
    """Of every kind, over recorded logits; only reading the results may wait."""
    subject = sampler(40)
    kept = torch.zeros(ROWS, 40, device=DEVICE)
    # The launches alone would be left of a recorded graph, so nothing is left.
    subject.record(kept, lambda step: lambda: kept)
    mixes = [
        [GREEDY] * ROWS,
        [SamplingParams(seed=1)] * ROWS,
        [SamplingParams(seed=2, top_p=0.8, top_k=9, min_p=0.1, logprobs=3)] * ROWS,
        [SamplingParams(seed=3, presence_penalty=0.5, logit_bias={3: 1.0})] * ROWS,
    ]
    for name in ("item", "tolist", "cpu", "nonzero"):
        monkeypatch.setattr(torch.Tensor, name, _refused(name))
    for params in mixes:
        sequences = sequences_of(params)
        for step in range(3):
            lengths = [4 + step] * ROWS
            with Calls() as calls:
                drawn = subject.draw(kept, sequences, lengths)
            waits = {"_local_scalar_dense", "nonzero", "lift_fresh", "_to_copy", "unique2"}
            assert not waits & set(calls.count), calls.count
            if step:  # no row changed, and the tokens before were counted on the device
                assert calls.count["copy_"] == 1, calls.count
            assert drawn.tokens.shape == (ROWS,)


def _refused(name):
    def refuse(*_, **__):
        raise AssertionError(f"{name} waits for the device")

    return refuse
