"""The grammars of calls accept what their parsers read, and nothing else."""

from __future__ import annotations

import json

import pytest

from cluster.api import Tool, ToolUse
from cluster.parsing.call_grammar import (
    DEEPSEEK,
    DEEPSEEK_V3,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_LIST,
    call_form,
    call_grammars,
)
from cluster.parsing.deepseek import CALL_BEGIN, CALL_END, CALLS_BEGIN, CALLS_END, SEPARATOR
from engine.errors import InvalidRequest
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
