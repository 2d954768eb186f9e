"""The bounds of tools, of their calls and of the fields for a template."""

import json
import math
import re

import pytest

from cluster.api import ChatMessage, ChatPrompt, Tool, ToolCall, ToolCallDelta, ToolUse
from cluster.api.chats.proto_convert import chat_from_proto
from cluster.api.chats.tool_json import (
    read_template_kwargs,
    read_tool_calls,
    read_tool_choice,
    read_tools,
)
from cluster.api.chats.tools import tool_use, whole_calls
from cluster.api.chats.turns import check_turns
from cluster.api.limits import MAX_TOOL_BYTES, MAX_TOOL_CALLS, MAX_TOOLS
from engine.errors import InvalidRequest
from tandem_client.messages import chat_to_proto
from tandem_client.protos import inference_pb2

GET = Tool("get", "Gets.", '{"type": "object"}', True)
NAN = '{"maximum": NaN}'
CALL = ToolCall("c1", "get", '{"a": 1}')


def function(**fields):
    return {"type": "function", "function": {"name": "get"} | fields}


def test_tools_in_openais_form():
    wanted = function(description="Gets.", parameters={"type": "object"}, strict=True)
    assert read_tools([wanted, function(name="put")]) == (GET, Tool("put"))
    assert read_tool_choice("none") == ("none", "")
    assert read_tool_choice(function()) == ("required", "get")
    called = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": '{"a": 1}'}}
    assert read_tool_calls([called], "m") == (CALL,)
    assert read_template_kwargs({"enable_thinking": False}) == '{"enable_thinking": false}'


@pytest.mark.parametrize(
    "value, field",
    [
        ({}, "tools"),
        ([1], "tools[0]"),
        ([function()] * (MAX_TOOLS + 1), "tools"),
        ([{"type": "custom"}], "tools[0].type"),
        ([{"type": "function", "function": []}], "tools[0].function"),
        ([function(name="a b")], "tools[0].function.name"),
        ([function(name="a" * 129)], "tools[0].function.name"),
        ([function(description=1)], "tools[0].function.description"),
        ([function(description="\ud800")], "tools[0].function.description"),
        ([function(parameters=[])], "tools[0].function.parameters"),
        (
            [function(parameters={"a": json.loads("[" * 65 + "]" * 65)})],
            "tools[0].function.parameters",
        ),
        ([function(parameters={"maximum": math.inf})], "tools[0].function.parameters"),
        ([function(strict="yes")], "tools[0].function.strict"),
        ([function(returns={})], "tools[0].function.returns"),
    ],
)
def test_wrong_tools_are_refused(value, field):
    with pytest.raises(InvalidRequest) as caught:
        read_tools(value)
    assert caught.value.field == field


@pytest.mark.parametrize("value", ["any", 1, [], {"type": "function"}, function(name="")])
def test_wrong_choices_are_refused(value):
    with pytest.raises(InvalidRequest) as caught:
        read_tool_choice(value)
    assert str(caught.value.field).startswith("tool_choice")


def test_contradictions_and_too_much_are_refused():
    for arguments, field in (
        (([], "required", "", True), "tool_choice"),
        (([GET], "required", "put", True), "tool_choice"),
        (([GET, GET], "auto", "", True), "tools"),
        (([Tool("a", "x" * MAX_TOOL_BYTES)], "auto", "", True), "tools"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            tool_use(*arguments)
        assert caught.value.field == field
    with pytest.raises(InvalidRequest):
        read_tool_calls([{}] * (MAX_TOOL_CALLS + 1), "m")


@pytest.mark.parametrize(
    "value",
    [
        1,
        {"chat_template": "{{ 1 }}"},
        {"messages": []},
        {"a-b": 1},
        {str(i): 1 for i in range(33)},
        {"a": "x" * 20_000},
        {"a": json.loads("[" * 65 + "]" * 65)},
        {"a": math.inf},
    ],
)
def test_template_fields_are_bounded(value):
    with pytest.raises(InvalidRequest) as caught:
        read_template_kwargs(value)
    assert caught.value.field == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"id": ""}, "m[0].id"),
        ({"function": {"name": "a b", "arguments": "{}"}}, "m[0].function.name"),
        ({"function": {"name": "get", "arguments": {}}}, "m[0].function.arguments"),
    ],
)
def test_a_wrong_field_of_a_call_is_named_as_the_client_has_it(wrong, field):
    call = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": "{}"}}
    with pytest.raises(InvalidRequest, match=re.escape(field)) as caught:
        read_tool_calls([call | wrong], "m")
    assert caught.value.field == field


def test_a_result_answers_an_open_call_once():
    asked = ChatMessage("assistant", "", (CALL,))
    result = ChatMessage("tool", "1", tool_call_id="c1")
    check_turns([asked, result, asked, result], "messages")
    for turns, field in (
        ([result], "messages[0].tool_call_id"),
        ([asked, result, result], "messages[2].tool_call_id"),
        ([asked, asked], "messages[1].tool_calls"),
        ([ChatMessage("user", "", (CALL,))], "messages[0].tool_calls"),
        ([ChatMessage("user", "", tool_call_id="c1")], "messages[0].tool_call_id"),
        ([ChatMessage("tool", "")], "messages[0].tool_call_id"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            check_turns(turns, "messages")
        assert caught.value.field == field


@pytest.mark.parametrize(
    "use", [ToolUse(), ToolUse((GET,)), ToolUse((GET, Tool("b")), "required", "b", False)]
)
def test_a_chat_is_the_same_behind_the_wire(use):
    turns = (
        ChatMessage("user", "hi"),
        ChatMessage("assistant", "", (CALL,), reasoning="hm"),
        ChatMessage("tool", "1", tool_call_id="c1"),
    )
    chat, wire = ChatPrompt(turns, use, '{"a": 1}'), inference_pb2.Chat()
    chat_to_proto(chat, wire)
    assert chat_from_proto(wire) == chat


def test_a_wrong_chat_on_the_wire_is_refused():
    message = inference_pb2.ChatMessage(role="user", content="hi")
    for wrong, field in (
        ({"tool_choice": 9}, "chat.tool_choice"),
        ({"tool_choice": inference_pb2.TOOL_CHOICE_REQUIRED}, "tool_choice"),
        ({"named_tool": "get"}, "chat.named_tool"),
        ({"template_kwargs": "[]"}, "chat.template_kwargs"),
        ({"template_kwargs": '{"a": 1e999}'}, "chat.template_kwargs"),
        ({"tools": [inference_pb2.Tool(name="a", parameters="[")]}, "chat.tools[0].parameters"),
        ({"tools": [inference_pb2.Tool(name="a", parameters=NAN)]}, "chat.tools[0].parameters"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            chat_from_proto(inference_pb2.Chat(messages=[message], **wrong))
        assert caught.value.field == field


def test_pieces_make_whole_calls():
    pieces = [ToolCallDelta(0, "c1", "get", '{"a"'), ToolCallDelta(0, arguments=": 1}")]
    assert whole_calls(pieces) == (CALL,)
