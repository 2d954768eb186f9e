"""The form of a model's answers, by its chat template or by the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

import models
from cluster.api import ChatMessage, ChatPrompt, Tool, ToolCall, ToolUse
from cluster.parsing.answer_form import AnswerForm
from cluster.parsing.deepseek import CALLS_BEGIN
from cluster.parsing.selection import FormSelection, calls_of, reasoning_of
from cluster.parsing.template_input import render, template_messages, template_tool
from engine.errors import ConfigError, InvalidRequest
from engine.text.tokenizer import RenderedChat, Tokenizer
from engine.types.grammar import Grammar
from tests.cluster.parsing.reading import QWEN
from tests.engine.text.test_tokenizer import byte_level, wrap

GET = Tool("get", "Gets.", '{"type": "object", "properties": {}}')
TURNS = (
    ChatMessage("user", "hi"),
    ChatMessage("assistant", "", (ToolCall("c1", "get", '{"a": 1}'),), reasoning="hm"),
    ChatMessage("tool", "1", tool_call_id="c1"),
)
TOOL_TURN = "{{ messages[1].tool_calls[0].function.arguments"


def model(template: str, **fields: object) -> Tokenizer:
    return Tokenizer(wrap(byte_level(), chat_template=template, **fields), name="m")


@pytest.mark.parametrize(
    "template, form",
    [
        ("'<tool_call>'", "hermes"),
        ('<|start_header_id|> {"name": f, "parameters": d}', "llama3"),
        ("<|python_tag|>", "llama3"),
        ("[TOOL_CALLS]", "mistral"),
        (CALLS_BEGIN, "deepseek"),
        ("<tool_call>\n<function=x>\n<parameter=y>", "qwen3_coder"),
        ("plain", "hermes"),
    ],
)
def test_a_template_chooses_the_form(template, form):
    assert calls_of(template, described=False) == form
    assert calls_of(template, described=True) == "response_template"


def test_a_template_chooses_the_form_of_reasoning():
    assert reasoning_of("a</think>") == "think"
    assert reasoning_of("[/THINK]") == "mistral"
    assert reasoning_of("plain") == "none"


def test_the_configuration_names_a_form():
    assert FormSelection(model("[TOOL_CALLS]"), "llama3").calls == "llama3"
    for fields in ({}, {"response_template": {"version": 9}}):
        assert FormSelection(model("x", **fields)).calls == "hermes"
        with pytest.raises(ConfigError, match="response_template"):
            FormSelection(model("x", **fields), "response_template")


def test_the_template_gets_tools_and_turns_as_transformers_has_them():
    assert template_tool(GET) == {
        "type": "function",
        "function": {
            "name": "get",
            "description": "Gets.",
            "parameters": {"type": "object", "properties": {}},
        },
    }
    _, asked, result = template_messages(TURNS, objects=True)
    assert asked["reasoning_content"] == "hm"
    assert asked["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "get", "arguments": {"a": 1}}}
    ]
    assert result == {"role": "tool", "content": "1", "tool_call_id": "c1", "name": "get"}


def test_arguments_are_objects_or_what_the_template_can_take():
    prompt = ChatPrompt(TURNS, ToolUse((GET,)), '{"extra": "!"}')
    assert render(model(TOOL_TURN + ".a }}{{ extra }}"), prompt).text == "1!"
    assert render(model(TOOL_TURN + " + 'x' }}"), prompt).text == '{"a": 1}x'
    assert render(model("{{ tools[0].function.name }}"), prompt).text == "get"
    with pytest.raises(InvalidRequest):
        render(model(TOOL_TURN + " + 1 }}"), prompt)


@pytest.mark.parametrize("levels", [60, 70, 900])
def test_arguments_that_are_nested_deep_are_text(levels):
    arguments = '{"a":' * levels + "1" + "}" * levels
    turns = (TURNS[0], ChatMessage("assistant", "", (ToolCall("c1", "get", arguments),)))
    found = template_messages(turns, objects=True)[1]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(found, str) == (levels > 64)
    shown = render(model(TOOL_TURN + " is string }}"), ChatPrompt(turns)).text
    assert shown == str(levels > 64)


def test_a_form_is_that_of_the_prompt():
    forms = FormSelection(model("<think></think>"))
    chat = ChatPrompt(TURNS, ToolUse((GET,)))
    form = forms.form(chat, RenderedChat([1], "<assistant><think>\n"), None)
    assert (form.calls, form.reasoning, form.inside) == ("hermes", "think", True)
    form = forms.form(ChatPrompt(TURNS), RenderedChat([1], "<think></think>"), None)
    assert (form.calls, form.inside) == ("", False)
    form = forms.form(ChatPrompt(TURNS, ToolUse((GET,), "none")), RenderedChat([1], "x"), None)
    assert form.calls == "" and not form.tools


def test_forced_calls_of_an_unknown_form_are_those_of_hermes():
    forms = FormSelection(model("x", response_template=QWEN))
    auto, forced = ToolUse((GET,)), ToolUse((GET,), "required")
    rendered = RenderedChat([1], "x")
    assert forms.form(ChatPrompt(TURNS, auto), rendered, None).calls == "response_template"
    assert forms.form(ChatPrompt(TURNS, forced), rendered, None).calls == "hermes"
    strict = ToolUse((Tool("get", strict=True),))
    for one, why in (
        (forms, "response_template says how calls are read"),
        (FormSelection(model("x"), "none"), "tool_parser is none"),
    ):
        with pytest.raises(InvalidRequest, match=f"strict.*{why}"):
            one.grammars(strict, one.form(ChatPrompt(TURNS, strict), rendered, None), None)


def test_a_form_of_blocks_is_that_of_hermes_where_blocks_cannot_hold_a_schema():
    forms = FormSelection(model("<function= <parameter="))
    rendered = RenderedChat([1], "x")
    for strict in (True, False):
        pattern = '{"type": "object", "properties": {"a": {"type": "string", "pattern": "b"}}}'
        tools = GET, Tool("put", "", pattern, strict)
        form = forms.form(ChatPrompt(TURNS, ToolUse(tools)), rendered, None)
        assert form.calls == ("hermes" if strict else "qwen3_coder")
    assert form.tools[1]["function"] == {"name": "put", "texts": {"a": "text"}}
    assert AnswerForm.read(form.text()) == form


def test_markers_that_are_special_tokens_are_written_as_tokens():
    tokenizer = model("[TOOL_CALLS][ARGS]")
    fast = wrap(byte_level(), chat_template="[TOOL_CALLS][ARGS]")
    fast.add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]"]})
    for one, marks in ((tokenizer, []), (Tokenizer(fast, name="m"), ["[TOOL_CALLS]"])):
        forms = FormSelection(one)
        use = ToolUse((GET,), "required")
        form = forms.form(ChatPrompt(TURNS, use), RenderedChat([1], "x"), None)
        ids = [one.encode(text)[0] for text in marks]
        assert list(forms.shown(form)) == ids
        grammar = forms.grammars(use, form, None)[0].text
        assert grammar.count("<[") == len(ids) and all(f"<[{token}]>" in grammar for token in ids)


def test_tools_and_a_grammar_contradict():
    forms = FormSelection(model("x"))
    for use, grammar, field in (
        (
            ToolUse((GET,), "required"),
            Grammar("json_schema", "{}", "response_format"),
            "tool_choice",
        ),
        (ToolUse((GET,)), Grammar("regex", "a", "guided_regex"), "guided_regex"),
    ):
        form = forms.form(ChatPrompt(TURNS, use), RenderedChat([1], "x"), grammar)
        with pytest.raises(InvalidRequest) as caught:
            forms.grammars(use, form, grammar)
        assert caught.value.field == field


def test_the_demo_model_takes_calls_and_results():
    demo = Tokenizer.load(str(Path(models.__file__).parent / "demo"))
    text = render(demo, ChatPrompt(TURNS, ToolUse((GET,)))).text
    assert text.endswith("<|end|><|user|>1<|end|><|assistant|>")
    assert '<tool_call>{"name": "get", "arguments": {"a": 1}}</tool_call>' in text
