"""Grammars of every kind are compiled, and refused with the place of what is wrong."""

from __future__ import annotations

import json

import pytest

from engine.errors import InvalidRequest, UnsupportedModel
from engine.grammar.compiler import GrammarCompiler
from engine.types.grammar import Grammar, choice_grammar
from tests import tiny
from tests.engine.grammar.walks import TOKENIZER, new_compiler, tokens_of

NESTED = {"type": "object", "properties": {"a": {"items": {"pattern": "x(?=y)"}}}}
REFERRED = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/b"}},
    "$defs": {"b": {"type": "object", "properties": {"c/d": {"not": {}}}}},
}
DEEP = '{"a":' * 65 + "1" + "}" * 65


@pytest.fixture(scope="module")
def compiler():
    return new_compiler()


def follows(compiler, grammar, text):
    """Whether a text is a complete answer."""
    matcher = compiler.compile(grammar).matcher().tokens
    tokens = tokens_of(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        (Grammar("json_schema", '{"type": "object"}'), '{"a": [1, {}]}', "[1]"),
        (Grammar("json_schema", "true"), "[null]", "[nul"),
        (Grammar("regex", "[a-c]+é?"), "abcé", "abd"),
        (Grammar("lark", 'start: "a" b+\nb: /[0-9]/ | "x"'), "a1x2", "1"),
        (Grammar("lark", 'root ::= "yes" | "no" root'), "nonoyes", "no"),
        (choice_grammar(["un", "deux é", '"\\\n']), '"\\\n', "deux"),
    ],
    ids=["object", "any", "regex", "lark", "ebnf", "choice"],
)
def test_every_kind_is_followed(compiler, grammar, right, wrong):
    assert follows(compiler, grammar, right)
    assert not follows(compiler, grammar, wrong)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("json_schema", "{", "not JSON: .*line 1 column 2"),
        ("json_schema", "[]", "must be a JSON object, not a list"),
        ("json_schema", DEEP, "#/a/a.*deeper than 64 levels"),
        ("json_schema", '{"type": "objekt"}', "#: .*objekt"),
        ("json_schema", json.dumps(NESTED), "#/properties/a/items: character 2 .*look-around"),
        ("json_schema", json.dumps(REFERRED), r"#/\$defs/b/properties/c~1d: .*not"),
        ("json_schema", '{"items": {"$ref": "https://x.org/y"}}', "#/items: .*x.org"),
        ("json_schema", '{"x-guidance": {"lenient": true}, "not": {}}', "not"),
        ("json_schema", '{"properties": {"a": {"minProperties": 2}}}', "#/properties/a: minProp"),
        ("regex", "a(b", "character 2 of a regex: unclosed group"),
        ("lark", 'start: a\nb: "x"', 'line 1, column 8: unknown name: "a"'),
        ("lark", 'root ::= "a" b', "Rule 'b' not found"),
        ("regex", "a" * 8193, "at most 8192 bytes"),
        ("lark", "é" * 70_000, "at most 131072 bytes"),
        ("regex", "", "is empty"),
    ],
)
def test_a_refusal_says_where(compiler, kind, text, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        compiler.compile(Grammar(kind, text, "response_format"))
    assert caught.value.field == "response_format"
    assert caught.value.message.startswith("response_format: ")
    assert len(caught.value.message) < 600 and "\n" not in caught.value.message


@pytest.mark.parametrize("texts", [[], ["a", ""], ["a"] * 1025, ["a" * 70_000] * 2])
def test_choices_are_bounded(texts):
    with pytest.raises(InvalidRequest, match="choice"):
        choice_grammar(texts)


def test_a_model_without_an_end_token_follows_no_grammar():
    with pytest.raises(UnsupportedModel, match="end token"):
        GrammarCompiler(TOKENIZER.backend_tokenizer.to_str(), tiny.VOCABULARY, [])


def test_an_odd_tokenizer_follows_no_grammar():
    odd = json.dumps({"model": {"type": "Odd", "vocab": {}}, "added_tokens": []})
    with pytest.raises(UnsupportedModel, match="cannot follow"):
        GrammarCompiler(odd, tiny.VOCABULARY, [tiny.EOS])
