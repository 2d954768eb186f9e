"""Random answers by a grammar alone, without a model."""

from __future__ import annotations

import random

import numpy as np

from engine.grammar.compiler import GrammarCompiler
from engine.grammar.masks import MaskMaker
from engine.types.grammar import Grammar
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence
from tests import tiny

TOKENIZER = tiny.make_tokenizer()
# These tokens end something, so that an answer comes to its end.
CLOSING = [TOKENIZER.backend_tokenizer.encode(text).ids[0] for text in '"}],']


def new_compiler() -> GrammarCompiler:
    serialized = TOKENIZER.backend_tokenizer.to_str()
    return GrammarCompiler(serialized, tiny.VOCABULARY, [tiny.EOS])


def tokens_of(text: str) -> list[int]:
    return TOKENIZER.backend_tokenizer.encode(text).ids


def text_of(tokens: list[int]) -> str:
    return TOKENIZER.backend_tokenizer.decode(tokens)


def sequence_of(matcher, output=(), owner="a") -> Sequence:
    sequence = Sequence(owner, [1, *output], 1, SamplingParams())
    sequence.matcher = matcher
    return sequence


def allowed(maker: MaskMaker, sequence: Sequence) -> list[int]:
    """The ids that the sequence may go on with; raises its fault."""
    pending = maker.begin([sequence])
    assert pending is not None
    masks = pending.result()
    for fault in masks.faults.values():
        raise fault
    return np.flatnonzero(~masks.banned[masks.rows[sequence.owner]]).tolist()


def walk(compiler: GrammarCompiler, grammar: Grammar, seed: int, most: int = 600) -> str | None:
    """The text of a random answer; None where it did not end within `most` tokens."""
    chosen, maker = random.Random(seed), MaskMaker(tiny.VOCABULARY)
    sequence = sequence_of(compiler.compile(grammar).matcher())
    while sequence.output_tokens < most:
        ids = allowed(maker, sequence)
        closing = [token for token in (*CLOSING, tiny.EOS) if token in ids]
        token = chosen.choice(closing if closing and chosen.random() < 0.3 else ids)
        if token == tiny.EOS:
            return text_of(sequence.tokens[1:])
        sequence.tokens.append(token)
    return None
