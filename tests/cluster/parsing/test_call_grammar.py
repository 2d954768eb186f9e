"""The grammars of calls accept what their parsers read, and nothing else."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from jsonschema import Draft202012Validator

from cluster.api import Tool, ToolUse
from cluster.parsing.call_grammar import (
    DEEPSEEK,
    DEEPSEEK_V3,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_LIST,
    QWEN3_CODER,
    call_form,
    call_grammars,
)
from cluster.parsing.deepseek import CALL_BEGIN, CALL_END, CALLS_BEGIN, CALLS_END, SEPARATOR
from cluster.parsing.parameter_schema import is_expressible, text_kinds
from cluster.parsing.selection import _typed
from engine.errors import Internal, InvalidRequest
from engine.grammar.compiler import GrammarCompiler
from engine.types.grammar import Grammar
from tests import tiny
from tests.cluster.parsing.reading import form_of, read

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
GET, PUT = Tool("get", "Gets.", json.dumps(SCHEMA), True), Tool("put")
LOOSE = Tool("get", "Gets.", json.dumps(SCHEMA))
GOOD, BAD = '{"city":"x"}', '{"cities":"x"}'
FORMS = {
    "hermes": (HERMES, '<tool_call>\n{{"name": "get", "arguments": {}}}\n</tool_call>'),
    "llama3": (LLAMA3, '{{"name": "get", "parameters": {}}}'),
    "mistral": (MISTRAL, "[TOOL_CALLS]get[ARGS]{}"),
    "mistral list": (MISTRAL_LIST, '[TOOL_CALLS][{{"name": "get", "arguments": {}}}]'),
    "deepseek": (
        DEEPSEEK,
        f"{CALLS_BEGIN}{CALL_BEGIN}get{SEPARATOR}{{}}{CALL_END}{CALLS_END}",
    ),
    "deepseek v3": (
        DEEPSEEK_V3,
        f"{CALLS_BEGIN}{CALL_BEGIN}function{SEPARATOR}get\n```json\n{{}}\n```{CALL_END}{CALLS_END}",
    ),
}
BLOCKS = "<tool_call>\n<function=get>\n{}</function>\n</tool_call>"
REQUIRED = ToolUse((GET, PUT), "required")


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    tokenizer = tiny.make_tokenizer().backend_tokenizer
    return GrammarCompiler(tokenizer.to_str(), tokenizer.get_vocab_size(), [tiny.EOS])


@pytest.fixture(params=FORMS)
def written(request):
    """The form of calls, and a function that writes a call with these arguments."""
    form, text = FORMS[request.param]
    return request.param.partition(" ")[0], form, text.format


def accepts(compiler: GrammarCompiler, grammar: Grammar, *texts: str) -> list[bool]:
    return [compiler.compile(grammar).matcher(stops=True).accepts(text) for text in texts]


def test_a_forced_call_has_the_form_that_its_parser_reads(compiler, written):
    name, form, write = written
    for use in (REQUIRED, ToolUse((GET,), "required", "get"), ToolUse((GET,), "required")):
        (grammar,) = call_grammars(form, use, None, None)
        texts = write(GOOD), write(BAD), "hi", ""
        assert accepts(compiler, grammar, *texts) == [True, False, False, False]
    assert read(form_of(name), [write(GOOD)])[-1].calls == (("get", GOOD),)


def test_reasoning_may_stand_before_a_forced_call(compiler, written):
    _, form, write = written
    (grammar,) = call_grammars(form, REQUIRED, None, ("<think>", "</think>", True))
    assert accepts(compiler, grammar, f"so\n</think>\n\n{write(GOOD)}", "so") == [True, False]
    (grammar,) = call_grammars(form, REQUIRED, None, ("<think>", "</think>", False))
    assert accepts(compiler, grammar, f"<think>so</think>{write(GOOD)}") == [True]
    assert accepts(compiler, grammar, write(GOOD)) == [True]


def test_strict_arguments_are_forced_where_the_model_chooses_to_call(compiler, written):
    _, form, write = written
    (grammar,) = call_grammars(form, ToolUse((GET, PUT)), None, None)
    texts = write(GOOD), write(BAD), "hello", ""
    assert accepts(compiler, grammar, *texts) == [True, False, True, True]
    assert call_grammars(form, ToolUse((PUT,)), None, None) == []
    assert call_grammars(form, ToolUse((GET,), "none"), None, None) == []


def test_an_answer_by_a_schema_or_a_call(compiler, written):
    _, form, write = written
    content = Grammar("json_schema", '{"type": "object", "properties": {"b": {"type": "integer"}}}')
    (grammar,) = call_grammars(form, ToolUse((GET,)), content, None)
    texts = write(GOOD), '{"b":1}', '{"b":"x"}', "hi"
    assert accepts(compiler, grammar, *texts) == [True, True, False, False]


def test_reasoning_before_an_answer_by_a_schema(compiler):
    content = Grammar("json_schema", '{"enum": [1]}', "response_format")
    (grammar,) = call_grammars(HERMES, ToolUse(), content, ("<think>", "</think>", True))
    assert accepts(compiler, grammar, "so</think>1", "1") == [True, False]
    assert grammar.field == "response_format"


@pytest.mark.parametrize("schema", ["x", "1", "[]", '{"minProperties": 2}', "[" * 2000])
def test_a_schema_beside_calls_or_reasoning_is_checked_as_alone(schema):
    content = Grammar("json_schema", schema, "guided_json")
    thought = ("<think>", "</think>", True)
    for use, before in ((ToolUse(), thought), (ToolUse((PUT,)), None)):
        with pytest.raises(InvalidRequest, match="guided_json: ") as caught:
            call_grammars(HERMES, use, content, before)
        assert caught.value.field == "guided_json"


def test_nothing_follows_the_schema_false(compiler):
    content = Grammar("json_schema", "false", "guided_json")
    (grammar,) = call_grammars(HERMES, ToolUse(), content, ("<think>", "</think>", True))
    with pytest.raises(InvalidRequest, match="guided_json"):
        compiler.compile(grammar)


@pytest.mark.parametrize("form", [HERMES, QWEN3_CODER])
def test_arguments_that_repeat_a_key_fill_no_strict_schema(form):
    wide = replace(GET, parameters='{"type": "object", "minProperties": 2}')
    with pytest.raises(InvalidRequest, match="minProperties"):
        call_grammars(form, ToolUse((wide,), "required"), None, None)
    loose = replace(wide, strict=False)
    assert len(call_grammars(form, ToolUse((loose,), "required"), None, None)) == 1


def test_schemas_that_are_not_strict_may_be_left_out(compiler):
    best, last = call_grammars(HERMES, ToolUse((LOOSE,), "required"), None, None)
    _, write = FORMS["hermes"]
    texts = write.format(GOOD), write.format(BAD)
    assert accepts(compiler, best, *texts) == [True, False]
    assert accepts(compiler, last, *texts) == [True, True]


def test_one_call_at_most_without_parallel_calls(compiler):
    _, write = FORMS["hermes"]
    two = "\n".join([write.format(GOOD)] * 2)
    for parallel in (True, False):
        use = ToolUse((GET,), "required", parallel=parallel)
        assert accepts(compiler, call_grammars(HERMES, use, None, None)[0], two) == [parallel]


def test_contradictions_are_refused():
    for use, kind in ((REQUIRED, "json_schema"), (ToolUse((GET,)), "regex")):
        with pytest.raises(InvalidRequest):
            call_grammars(HERMES, use, Grammar(kind, "{}"), None)


def test_the_template_says_which_of_two_forms_is_written():
    assert call_form("mistral", "[ARGS]") is MISTRAL
    assert call_form("mistral", "") is MISTRAL_LIST
    assert call_form("deepseek", "```json") is DEEPSEEK_V3
    assert call_form("deepseek", "") is DEEPSEEK
    assert call_form("response_template", "") is HERMES
    assert call_form("qwen3_coder", "") is QWEN3_CODER


MARKED = {
    "mistral": (MISTRAL, "[TOOL_CALLS]", "get", "[ARGS]", "{}"),
    "mistral list": (MISTRAL_LIST, "[TOOL_CALLS]", '[{{"name": "get", "arguments": {}}}]'),
}


@pytest.mark.parametrize("name", MARKED)
def test_a_marker_that_is_a_special_token_is_written_as_that_token(name):
    form, *parts = MARKED[name]
    tokenizer = tiny.make_tokenizer().backend_tokenizer
    tokenizer.add_special_tokens(["[TOOL_CALLS]", "[ARGS]", "[/THINK]"])
    marks = {
        one: tokenizer.token_to_id(one) for one in ("[TOOL_CALLS]", "[ARGS]", "[/THINK]", "[THINK]")
    }
    del marks["[THINK]"]
    compiler = GrammarCompiler(tokenizer.to_str(), tokenizer.get_vocab_size(), [tiny.EOS])

    def ids(arguments: str) -> list[int]:
        return tokenizer.encode("".join(parts).format(arguments)).ids

    def as_text(arguments: str) -> list[int]:
        return [tiny_ids(one)[0] for one in "".join(parts).format(arguments)]

    def tiny_ids(text: str) -> list[int]:
        return tiny.make_tokenizer().backend_tokenizer.encode(text).ids

    def follows(grammar: Grammar, tokens: list[int]) -> bool:
        matcher = compiler.compile(grammar).matcher()
        try:
            matcher.follow(tokens, 0)
        except Internal:
            return False
        return bool(matcher.tokens.is_accepting())

    (forced,) = call_grammars(form, REQUIRED, None, None, marks)
    assert follows(forced, ids(GOOD)) and not follows(forced, ids(BAD))
    assert not follows(forced, as_text(GOOD))
    assert accepts(compiler, forced, "".join(parts).format(GOOD), "x") == [True, False]
    (chosen,) = call_grammars(form, ToolUse((GET, PUT)), None, None, marks)
    said = tokenizer.encode("so ").ids
    assert follows(chosen, said) and follows(chosen, [*said, *ids(GOOD)])
    assert not follows(chosen, ids(BAD)) and not follows(chosen, as_text(GOOD))
    thought = ("[THINK]", "[/THINK]", True)
    (thinking,) = call_grammars(form, REQUIRED, None, thought, marks)
    assert follows(thinking, tokenizer.encode("so[/THINK]").ids + ids(GOOD))
    assert not follows(thinking, tiny_ids("so[/THINK]") + ids(GOOD))


def block(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>\n"


@pytest.mark.parametrize(
    "schema, good, bad",
    [
        ({"type": "string"}, ["", "a\nb", "12", "null", "a < b"], ["x</parameter>\ny"]),
        ({"type": "string", "enum": ["a", "b c"]}, ["a", "b c"], ["", "ab"]),
        ({"const": "a"}, ["a"], ["b"]),
        ({"type": "string", "minLength": 2, "maxLength": 4}, ["ab", "a\n\nb"], ["a", "abcde", ""]),
        ({"type": "integer", "minimum": 3}, ["3", "12"], ["2", "a", '"3"']),
        ({"type": ["string", "null"]}, ["a", "null", ""], []),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["a", "null"], []),
        ({"type": "array", "items": {"type": "boolean"}}, ["[]", "[true]"], ["true", "[1]"]),
        ({"$ref": "#/$defs/color"}, ["red"], ["blue"]),
        (
            {"type": "object", "properties": {"c": {"$ref": "#/$defs/color"}}},
            ['{"c":"red"}'],
            ["1"],
        ),
        ({"enum": [1, "a"]}, ["1", '"a"'], ["a"]),
        ({}, ["1", '"a"'], ["a"]),
    ],
)
def test_blocks_have_what_the_schema_of_each_argument_asks_for(compiler, schema, good, bad):
    defs = {"color": {"type": "string", "enum": ["red"]}}
    whole = SCHEMA | {
        "properties": {"a": schema, "city": {"type": "string"}},
        "required": ["city"],
        "$defs": defs,
    }
    tool = Tool("get", parameters=json.dumps(whole), strict=True)
    form = replace(form_of("qwen3_coder"), tools=(_typed(tool),))
    for use in (ToolUse((tool,), "required"), ToolUse((tool,))):
        (grammar,) = call_grammars(QWEN3_CODER, use, None, None)
        city = block("city", "Paris")
        texts = [BLOCKS.format(block("a", one) + city) for one in good]
        assert accepts(compiler, grammar, BLOCKS.format(city), *texts) == [True] * (1 + len(good))
        for text in texts:
            [(name, arguments)] = read(form, [text])[-1].calls
            assert name == "get"
            Draft202012Validator(whole).validate(json.loads(arguments))
        wrong = [BLOCKS.format(block("a", one) + city) for one in bad]
        wrong += [BLOCKS.format(""), BLOCKS.format(block("a", good[0]))]
        assert not any(accepts(compiler, grammar, *wrong))


def test_blocks_of_a_tool_without_a_schema_have_any_keys(compiler):
    (grammar,) = call_grammars(QWEN3_CODER, ToolUse((Tool("get"),), "required"), None, None)
    texts = BLOCKS.format(""), BLOCKS.format(block("a", "1") + block("b", "x")), BLOCKS.format("x")
    assert accepts(compiler, grammar, *texts) == [True, True, False]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {}, "minProperties": 1},
        {"properties": {"a": {"type": "string", "pattern": "a"}}},
        {"properties": {"a": {"type": "string", "format": "date"}}},
        {"properties": {"a>": {"type": "string"}}},
        {"properties": {"a": {"$ref": "#"}}},
        {"properties": {}, "required": ["a"]},
        {"properties": {"a": {"type": ["string", "null"], "maxLength": 2}}},
        {"properties": {"a": {"type": "string", "enum": 5}}},
        {
            "properties": {f"a{n}": {"items": {"$ref": "#/$defs/b"}} for n in range(900)},
            "$defs": {"b": {"description": "x" * 1000}},
        },
    ],
)
def test_what_blocks_cannot_have_is_forced_in_the_form_of_hermes(schema):
    assert not is_expressible(json.dumps(schema))


def test_types_are_found_in_a_maze_of_references_in_time():
    maze = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{m}"} for m in range(40)]} for n in range(40)}
    schema = {"properties": {"a": {"$ref": "#/$defs/a0"}}, "$defs": maze}
    assert text_kinds(json.dumps(schema)) == {}
    wide = {"b": {"anyOf": [{"type": "null"}] * 8000 + [{"type": "string"}]}}
    many = {f"a{n}": {"anyOf": [{"$ref": "#/$defs/b"}]} for n in range(8000)}
    began_s = time.monotonic()
    schema = json.dumps({"properties": many, "$defs": wide})
    assert len(text_kinds(schema)) <= 1 and not is_expressible(schema)
    assert time.monotonic() - began_s < 5
