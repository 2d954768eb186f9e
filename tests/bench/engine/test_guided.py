"""The benchmark of guided answers, with a model of a moment."""

from __future__ import annotations

import pytest

from bench.core.model_135m import ModelShape, make
from bench.engine import guided
from bench.engine.guided_answers import grammars, new_compiler, vocabulary_pieces, write_text_model
from engine.text.tokenizer import Tokenizer

SMALL = ModelShape(hidden=64, intermediate=96, layers=2, heads=4, kv_heads=2, vocabulary=2048)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make(tmp_path_factory.mktemp("bench") / "model", SMALL)


def test_each_way_is_compared_with_free_streams(folder):
    found = guided.measure(folder, SMALL, streams=4, turns=3, steps=2)
    for way in ("greedy", "sampled"):
        assert found[f"{way}: guided over free"].value > 0
        assert found[f"{way}: free over without masks"].n == 3
        assert found[f"{way}: token gap, guided"].unit == "ms"


def test_every_token_of_the_vocabulary_has_a_piece_of_its_own():
    pieces = vocabulary_pieces(2048)
    assert len(set(pieces)) == 2048


def test_the_served_model_reads_and_writes_texts(folder):
    tokenizer = Tokenizer.load(str(write_text_model(folder, SMALL.vocabulary)))
    text = '{"größe": [12, "ab"]}'
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_ids == {2}


def test_no_answer_ends_while_it_is_measured():
    compiler = new_compiler(SMALL.vocabulary)
    for grammar in grammars():
        matcher = compiler.compile(grammar).matcher().tokens
        record = matcher.try_consume_tokens([vocabulary_pieces(2048).index("[")])
        assert record == 1
        assert not matcher.is_accepting()
