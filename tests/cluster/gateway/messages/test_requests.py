"""Bodies of the Messages API: what becomes of each field, and each refusal by its name."""

from __future__ import annotations

import json

import pytest

from cluster.api import ChatMessage, Tool, ToolCall
from cluster.api.limits import MAX_CONTENT_PARTS, MAX_MESSAGES, MAX_TOOLS
from cluster.gateway.messages.requests import CountRequest, MessagesRequest
from engine.errors import InvalidRequest
from engine.types.sampling_params import SamplingParams

HELLO = {"role": "user", "content": "hello"}
BODY = {"model": "demo", "max_tokens": 5, "messages": [HELLO]}
TOOL = {"name": "get", "input_schema": {"type": "object"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
USE = {"type": "tool_use", "id": "c1", "name": "get", "input": {"a": "é"}}
RESULT = {"type": "tool_result", "tool_use_id": "c1"}
TEXT = {"type": "text", "text": "one"}


def read(**fields):
    return MessagesRequest.read(BODY | fields).call("r").request


def said(*messages, system=None):
    more = {} if system is None else {"system": system}
    return read(messages=[*messages], **more).prompt.messages


def assistant(*blocks):
    return {"role": "assistant", "content": [*blocks]}


def user(*blocks):
    return {"role": "user", "content": [*blocks]}


def test_every_field_arrives():
    call = MessagesRequest.read(
        BODY
        | {
            "stream": True,
            "stop_sequences": ["x", "y"],
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 3,
            "endpoint": "report",
            "request_id": "mine",
            "metadata": {"user_id": "u"},
            "service_tier": "auto",
            "cache_control": {"type": "ephemeral"},
            "container": None,
        }
    ).call("r", "acme", 1.5)
    request = call.request
    assert (call.stream, call.thinking) == (True, True)
    assert (request.endpoint, request.request_id, request.tenant) == ("report", "mine", "acme")
    assert (request.model, request.arrived_s, request.n) == ("demo", 1.5, 1)
    assert request.sampling == SamplingParams(
        max_tokens=5, temperature=0.5, top_p=0.9, top_k=3, stop=("x", "y")
    )


def test_absent_fields_have_the_defaults_of_the_chat():
    request = read()
    assert request.sampling == SamplingParams(max_tokens=5)
    assert request.prompt.messages == (ChatMessage("user", "hello"),)
    assert not request.prompt.use.tools and not request.prompt.template_kwargs


def test_a_conversation_with_tools_and_thinking():
    cached = {"cache_control": {"type": "ephemeral"}}
    found = said(
        user(TEXT, TEXT | {"text": "two", "citations": None} | cached),
        assistant(
            {"type": "thinking", "thinking": "well", "signature": "s"},
            TEXT | {"text": "A"},
            USE | {"caller": {"type": "direct"}},
            TEXT | {"text": "B"},
        ),
        user(
            RESULT | {"content": [TEXT, TEXT], "is_error": True} | cached,
            TEXT | {"text": "go on"},
        ),
        {"role": "user", "content": "please"},
        system=[TEXT, TEXT],
    )
    assert found == (
        ChatMessage("system", "one\none"),
        ChatMessage("user", "one\ntwo"),
        ChatMessage("assistant", "AB", (ToolCall("c1", "get", '{"a": "é"}'),), "", "well"),
        ChatMessage("tool", "one\none", (), "c1"),
        ChatMessage("user", "go on\nplease"),
    )


def test_results_may_be_empty_and_turns_may_have_nothing():
    found = said(HELLO, assistant(USE), user(RESULT), assistant(), HELLO)
    assert [(one.role, one.content) for one in found] == [
        *(("user", "hello"), ("assistant", ""), ("tool", "")),
        *(("assistant", ""), ("user", "hello")),
    ]
    assert said({"role": "system", "content": "be"}, HELLO)[0] == ChatMessage("system", "be")


@pytest.mark.parametrize(
    ("choice", "use"),
    [
        ({"type": "auto"}, ("auto", "", True)),
        ({"type": "any"}, ("required", "", True)),
        ({"type": "none"}, ("none", "", True)),
        ({"type": "tool", "name": "get"}, ("required", "get", True)),
        ({"type": "any", "disable_parallel_tool_use": True}, ("required", "", False)),
    ],
)
def test_tools_and_their_choice(choice, use):
    tools = [
        TOOL | {"description": "Gets.", "strict": True, "type": "custom"},
        TOOL | {"name": "p"},
    ]
    found = read(tools=tools, tool_choice=choice).prompt.use
    assert (found.mode, found.named, found.parallel) == use
    assert found.tools[0] == Tool("get", "Gets.", '{"type": "object"}', True)


@pytest.mark.parametrize(
    ("given", "fields", "shown"),
    [
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking": False}, True),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 2048}},
            {"enable_thinking": True, "thinking": True, "thinking_budget": 2048},
            True,
        ),
        (
            {
                "thinking": {"type": "adaptive", "display": "omitted"},
                "output_config": {"effort": "low"},
            },
            {"enable_thinking": True, "thinking": True, "reasoning_effort": "low"},
            False,
        ),
    ],
)
def test_thinking_and_effort_go_to_the_template(given, fields, shown):
    call = MessagesRequest.read(BODY | given).call("r")
    assert json.loads(call.request.prompt.template_kwargs) == fields
    assert call.thinking is shown


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, "output_config"),
        ({"output_format": {"type": "json_schema", "schema": SCHEMA}}, "output_format"),
    ],
)
def test_the_form_of_the_answer(given, field):
    grammar = read(**given).sampling.grammar
    assert (grammar.kind, json.loads(grammar.text)) == ("json_schema", SCHEMA)
    assert grammar.field.startswith(field)


def test_a_count_takes_what_becomes_the_prompt_alone():
    body = {"model": "demo", "messages": [HELLO, assistant(TEXT)], "system": "s", "tools": [TOOL]}
    call = CountRequest.read(body).call()
    assert [one.role for one in call.prompt.messages] == ["system", "user", "assistant"]
    assert call.model == "demo" and call.prompt.use.tools[0].name == "get"
    with pytest.raises(InvalidRequest, match="max_tokens"):
        CountRequest.read(BODY)


def messages(*entries):
    return {"messages": [*entries]}


def blocks(*given, role="user"):
    return messages({"role": role, "content": [*given]})


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
BROKEN = "\ud800"
BAD = [
    ({"model": None}, "model"),
    ({"model": 5}, "model"),
    ({"model": "m" * 513}, "model"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"stream": 1}, "stream"),
    ({"top_k": 1.5}, "top_k"),
    ({"prompt": "a"}, "prompt"),
    ({"n": 2}, "n"),
    ({"mcp_servers": [{}]}, "mcp_servers"),
    ({"container": "c"}, "container"),
    ({"metadata": "u"}, "metadata"),
    ({"metadata": {"user_id": 5}}, "metadata.user_id"),
    ({"metadata": {"user_id": "u" * 513}}, "metadata.user_id"),
    ({"metadata": {"name": "u"}}, "metadata.name"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"stop_sequences": [5]}, "stop_sequences"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"stop_sequences": ["x" * 1025]}, "stop_sequences"),
    ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
    ({"stop_sequences": [BROKEN]}, "stop_sequences"),
    ({"system": 5}, "system"),
    ({"system": [IMAGE]}, "system[0].type"),
    ({"system": [TEXT] * (MAX_CONTENT_PARTS + 1)}, "system"),
    ({"system": BROKEN}, "system"),
    ({"messages": None}, "messages"),
    ({"messages": "hello"}, "messages"),
    (messages(), "messages"),
    ({"messages": [HELLO] * (MAX_MESSAGES + 1)}, "messages"),
    (messages("hello"), "messages[0]"),
    (messages({"role": "tool", "content": "a"}), "messages[0].role"),
    (messages({"role": ["user"], "content": "a"}), "messages[0].role"),
    (messages({"role": "user"}), "messages[0].content"),
    (messages({"role": "user", "content": {"a": 1}}), "messages[0].content"),
    (messages({"role": "user", "content": BROKEN}), "messages[0].content"),
    (messages(HELLO | {"name": "u"}), "messages[0].name"),
    (messages(HELLO, assistant(TEXT)), "messages"),
    (blocks(*[TEXT] * (MAX_CONTENT_PARTS + 1)), "messages"),
    (blocks(RESULT | {"content": [TEXT] * MAX_CONTENT_PARTS}), "messages"),
    (blocks("a"), "messages[0].content[0]"),
    (blocks({"type": 5}), "messages[0].content[0].type"),
    (blocks({"type": ["text"]}), "messages[0].content[0].type"),
    (blocks({"text": "a"}), "messages[0].content[0].type"),
    (blocks(TEXT, IMAGE), "messages[0].content[1].type"),
    (blocks({"type": "document", "source": {}}), "messages[0].content[0].type"),
    (blocks(USE), "messages[0].content[0].type"),
    (blocks({"type": "text", "text": 5}), "messages[0].content[0].text"),
    (blocks(TEXT | {"citations": [{}]}), "messages[0].content[0].citations"),
    (blocks(TEXT | {"texts": "b"}), "messages[0].content[0].texts"),
    (blocks(RESULT), "messages[0].content[0].tool_use_id"),
    (blocks({"type": "tool_result"}), "messages[0].content[0].tool_use_id"),
    (blocks({"type": "redacted_thinking"}, role="assistant"), "messages[0].content[0].type"),
    (blocks({"type": "thinking"}, role="assistant"), "messages[0].content[0].thinking"),
    (blocks(USE | {"id": "a b"}, role="assistant"), "messages[0].content[0].id"),
    (blocks(USE | {"name": ""}, role="assistant"), "messages[0].content[0].name"),
    (blocks(USE | {"input": "{}"}, role="assistant"), "messages[0].content[0].input"),
    (blocks(USE | {"input": {BROKEN: 1}}, role="assistant"), "messages[0].content[0].input"),
    (blocks(USE, USE, role="assistant"), "messages[0].content[1].id"),
    (
        blocks(*(USE | {"id": f"c{one}"} for one in range(129)), role="assistant"),
        "messages[0].content[128]",
    ),
    (
        messages(HELLO, assistant(USE), user(RESULT | {"content": [IMAGE]})),
        "messages[2].content[0].content[0].type",
    ),
    (
        messages(HELLO, assistant(USE), user(RESULT | {"is_error": "no"})),
        "messages[2].content[0].is_error",
    ),
    (messages(HELLO, assistant(USE), user(RESULT, RESULT)), "messages[2].content[1].tool_use_id"),
    ({"tools": {}}, "tools"),
    ({"tools": [TOOL] * (MAX_TOOLS + 1)}, "tools"),
    ({"tools": [TOOL, TOOL]}, "tools"),
    ({"tools": ["get"]}, "tools[0]"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [TOOL | {"type": ["custom"]}]}, "tools[0].type"),
    ({"tools": [{"name": "get"}]}, "tools[0].input_schema"),
    ({"tools": [TOOL | {"input_schema": "{}"}]}, "tools[0].input_schema"),
    ({"tools": [TOOL | {"name": "a b"}]}, "tools[0].name"),
    ({"tools": [TOOL | {"description": 5}]}, "tools[0].description"),
    ({"tools": [TOOL | {"strict": 1}]}, "tools[0].strict"),
    ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tools": [TOOL | {"parameters": {}}]}, "tools[0].parameters"),
    ({"tools": [TOOL | {"description": "d" * 600_000}]}, "tools"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": {"type": "required"}}, "tool_choice.type"),
    ({"tool_choice": {"type": ["any"]}}, "tool_choice.type"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool"}, "tools": [TOOL]}, "tool_choice.name"),
    ({"tool_choice": {"type": "tool", "name": "put"}, "tools": [TOOL]}, "tool_choice"),
    ({"tool_choice": {"type": "any", "name": "get"}, "tools": [TOOL]}, "tool_choice.name"),
    (
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}},
        "tool_choice.disable_parallel_tool_use",
    ),
    ({"thinking": True}, "thinking"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 2**31}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": True}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "adaptive", "display": "all"}}, "thinking.display"),
    ({"output_config": []}, "output_config"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "regex"}}}, "output_config.format.type"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": "{}"}}},
        "output_config.format.schema",
    ),
    (
        {
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
            "output_format": {"type": "json_schema", "schema": SCHEMA},
        },
        "output_format",
    ),
    ({"request_id": "a b"}, "request_id"),
    ({"endpoint": "e" * 513}, "endpoint"),
]


@pytest.mark.parametrize(("given", "field"), BAD)
def test_bad_fields_are_refused_by_name(given, field):
    with pytest.raises(InvalidRequest) as caught:
        read(**given)
    assert caught.value.field == field
    assert field.rpartition(".")[2] in caught.value.message
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("body", [None, [], "a", 5])
def test_the_body_is_an_object(body):
    for kind in (MessagesRequest, CountRequest):
        with pytest.raises(InvalidRequest, match="JSON object"):
            kind.read(body)
