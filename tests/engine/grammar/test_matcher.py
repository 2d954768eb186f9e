"""A matcher: its state depends on the tokens alone, and only a complete answer ends."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.json_schemas import make_schemas
from engine.errors import Internal, InvalidRequest
from engine.grammar.masks import MaskMaker
from engine.types.grammar import Grammar
from tests import tiny
from tests.engine.grammar.walks import allowed, new_compiler, sequence_of, tokens_of, walk

COMPILER = new_compiler()
MAKER = MaskMaker(tiny.VOCABULARY)
SCHEMAS = [Grammar("json_schema", json.dumps(one)) for one in make_schemas(30, seed=2)]
START = 256  # <|start|>, a special token


@settings(max_examples=60)
@given(number=st.integers(0, 29), seed=st.integers(0, 99), cuts=st.lists(st.integers(0, 200)))
def test_the_state_is_a_function_of_the_tokens(number, seed, cuts):
    """However the tokens come: one by one, in pieces, or all at once after a failover."""
    grammar = SCHEMAS[number]
    compiled = COMPILER.compile(grammar)
    tokens = tokens_of(walk(COMPILER, grammar, seed) or "")
    grown = sequence_of(compiled.matcher())
    for cut in sorted(cut for cut in cuts if cut <= len(tokens)):
        grown.tokens = [1, *tokens[:cut]]
        anew = sequence_of(compiled.matcher(), tokens[:cut])
        assert allowed(MAKER, grown) == allowed(MAKER, anew)


def test_only_a_complete_answer_ends():
    compiled = COMPILER.compile(Grammar("regex", "(ab)+"))
    seen = [
        {tiny.EOS, START} & set(allowed(MAKER, sequence_of(compiled.matcher([START]), output)))
        for output in (tokens_of(text) for text in ("", "a", "ab", "aba"))
    ]
    assert seen == [set(), set(), {tiny.EOS, START}, set()]


def test_nothing_but_the_end_follows_a_whole_answer():
    compiled = COMPILER.compile(Grammar("json_schema", '{"type": "object"}'))
    assert allowed(MAKER, sequence_of(compiled.matcher(), tokens_of("{}"))) == [tiny.EOS]


def test_the_end_token_is_no_part_of_an_answer():
    compiled = COMPILER.compile(Grammar("lark", f'start: <[{tiny.EOS}]> "a"'))
    with pytest.raises(InvalidRequest, match="no next token behind 0 tokens"):
        allowed(MAKER, sequence_of(compiled.matcher()))


def test_a_grammar_that_becomes_too_complex_is_the_clients_fault():
    optional = " ".join(["a"] * 3000)
    compiled = COMPILER.compile(Grammar("lark", f'start: /y*/ {optional}\na: "x"?'))
    output = tokens_of("yyx")
    with pytest.raises(InvalidRequest, match=r"too complex behind 0 tokens.* items"):
        allowed(MAKER, sequence_of(compiled.matcher(), output))
    wrong = sequence_of(COMPILER.compile(Grammar("regex", "a+")).matcher(), tokens_of("b"))
    with pytest.raises(Internal, match="left its grammar"):
        allowed(MAKER, wrong)


def test_tokens_beside_the_grammar_are_a_fault_of_their_sequence_alone():
    compiled = COMPILER.compile(Grammar("regex", "a+"))
    wrong = sequence_of(compiled.matcher(), tokens_of("b"), "wrong")
    right = sequence_of(compiled.matcher(), tokens_of("a"), "right")
    masks = MAKER.begin([wrong, sequence_of(None, owner="free"), right]).result()
    assert set(masks.faults) == {"wrong"} and set(masks.rows) == {"wrong", "right"}
    assert not masks.banned[masks.rows["right"], [*tokens_of("a"), tiny.EOS]].any()


def test_a_text_is_complete_whatever_texts_came_before():
    matcher = COMPILER.compile(Grammar("regex", "(aé)*")).matcher(stops=True)
    texts = ("", "a", "aé", "aéa", "aéaé", "aé", "a", "", "aéaéaé")
    assert [matcher.accepts(text) for text in texts] == [
        *(True, False, True, False, True),
        *(True, False, True, True),
    ]


def test_a_matcher_without_stop_strings_knows_no_texts():
    with pytest.raises(Internal, match="not know texts"):
        COMPILER.compile(Grammar("regex", "a")).matcher().accepts("a")
