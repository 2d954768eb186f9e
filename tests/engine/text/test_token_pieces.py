"""Texts of single tokens: known only where they depend on no other whole token."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from engine.text.detokenizer import Detokenizer
from engine.text.token_pieces import decoder_of, goes_by_token
from tests.engine.text.test_completion import NAMES, TOKENIZERS

REPLACE, FUSE = decoders.Replace("▁", " "), decoders.Fuse()


@pytest.mark.parametrize(
    ("decoder", "expected"),
    [
        (None, False),
        (decoders.ByteLevel(), True),
        (decoders.Metaspace(), True),
        (decoders.WordPiece(), False),
        (decoders.CTC(), False),
        (decoders.BPEDecoder(), False),
        (decoders.Sequence([decoders.ByteLevel()]), True),
        (decoders.Sequence([REPLACE, decoders.ByteFallback(), FUSE]), True),
        (decoders.Sequence([REPLACE, FUSE, decoders.Strip(" ", 1, 0)]), True),
        (decoders.Sequence([REPLACE, FUSE, decoders.Strip(" ", 0, 1)]), False),
        (decoders.Sequence([FUSE, REPLACE]), False),
        (decoders.Sequence([decoders.ByteLevel(), decoders.CTC()]), False),
    ],
)
def test_only_decoders_that_go_token_by_token_have_pieces(decoder, expected):
    backend = Backend(models.BPE())
    if decoder is not None:
        backend.decoder = decoder
    assert goes_by_token(decoder_of(backend)) is expected


class Unaided:
    """A tokenizer that knows no pieces."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def piece(self, token):
        return None

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)


@settings(max_examples=300, deadline=None)
@given(NAMES, st.data())
def test_pieces_change_neither_the_text_nor_when_it_comes(name, data):
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocabulary + 2), max_size=60))
    shown = data.draw(st.sets(st.sampled_from(sorted(tokenizer.eos_ids) or [0]), max_size=1))
    aided, plain = Detokenizer(tokenizer, shown), Detokenizer(Unaided(tokenizer), shown)
    for token in ids:
        assert aided.push(token) == plain.push(token)
    assert aided.flush() == plain.flush()


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
def test_most_tokens_have_a_piece(name):
    tokenizer = TOKENIZERS[name]
    ids = [token for token in range(tokenizer.vocabulary) if not tokenizer.is_silent(token)]
    ids = [token for token in ids if not tokenizer.is_byte(token)]
    pieces = [tokenizer.piece(token) for token in ids]
    assert sum(piece is not None for piece in pieces) > len(ids) / 3
    assert all(tokenizer.piece(token) is None for token in tokenizer.eos_ids)
