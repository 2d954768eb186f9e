"""Rows that follow a grammar take allowed tokens alone, and disturb no other row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import Internal
from engine.grammar.masks import TokenMasks
from engine.sampling.sampler import sample
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence

VOCABULARY = 50
KINDS = (
    {"temperature": 0.0},
    {"temperature": 1.5},
    {"top_k": 5, "top_p": 0.8},
    {"min_p": 0.2, "logit_bias": {3: 9.0}},
    {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 1.0},
    {"logprobs": 3},
)


def rows_of(seed, count):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, VOCABULARY, generator=generator) * 3
    made = [
        Sequence(f"{row}", [0, 1, 3], 1, SamplingParams(seed=seed, **KINDS[row % len(KINDS)]))
        for row in range(count)
    ]
    return logits, made


def masks_of(seed, sequences, faults=()):
    banned = np.random.default_rng(seed).random((len(sequences), VOCABULARY)) < 0.9
    banned[:, seed % VOCABULARY] = False
    rows = {sequence.owner: row for row, sequence in enumerate(sequences)}
    bits = np.packbits(banned, axis=1, bitorder="little")
    return TokenMasks(banned, bits, rows, {owner: Internal("no token") for owner in faults})


@given(seed=st.integers(0, 10_000), guided=st.sets(st.integers(0, 11)))
def test_tokens_are_allowed_and_other_rows_are_as_without(seed, guided):
    logits, sequences = rows_of(seed, 12)
    masks = masks_of(seed, [sequences[row] for row in sorted(guided)])
    mixed = sample(logits, sequences, masks)
    alone = sample(logits, sequences)
    for row, sequence in enumerate(sequences):
        if row not in guided:
            assert mixed[row] == alone[row]
            continue
        banned = masks.banned[masks.rows[sequence.owner]]
        assert not banned[mixed[row].token]
        limited = logits[row : row + 1].masked_fill(torch.from_numpy(banned), -torch.inf)
        if not sequence.sampling.logprobs:
            assert mixed[row] == sample(limited, [sequence])[0]
        if sequence.sampling.logprobs:
            # Of the model's own distribution, whatever is allowed.
            expected = logits[row].log_softmax(-1)[mixed[row].token].item()
            assert mixed[row].logprob == pytest.approx(expected, abs=1e-5)


def test_a_row_without_a_token_fails_alone():
    logits, sequences = rows_of(1, 3)
    masks = masks_of(1, sequences[:2], faults=["1"])
    masks.banned[1] = True
    first, second, third = sample(logits, sequences, masks)
    assert isinstance(second, Internal) and second.message == "no token"
    assert not isinstance(first, Internal) and not isinstance(third, Internal)
