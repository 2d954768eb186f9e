"""Bodies of responses: what is refused, by which name, and the turns that items become."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from cluster.api import ChatMessage, ToolCall
from cluster.gateway.http_app import create_app
from cluster.gateway.responses.requests import ResponseRequest
from engine.errors import InvalidRequest
from tests.cluster.gateway.http_listener import metrics
from tests.cluster.scripted_generator import ScriptedGenerator


def refused(**given):
    """The field and the message of the refusal."""
    with pytest.raises(InvalidRequest) as caught:
        ResponseRequest.read({"input": "x"} | given).call("r")
    return caught.value.field, caught.value.message


def item(kind="message", **fields):
    return {"type": kind} | fields


USER = {"role": "user", "content": "x"}
CALL = item("function_call", call_id="c", name="f", arguments="{}")
RESULT = item("function_call_output", call_id="c", output="1")


@pytest.mark.parametrize(
    ("items", "field"),
    [
        ("", "input"),
        (5, "input"),
        ([], "input"),
        ([USER] * 2049, "input"),
        ([{"role": "user", "content": [{"type": "input_text", "text": ""}] * 2049}], "input"),
        (["x"], "input[0]"),
        ([{}], "input[0].type"),
        ([item("web_search_call", id="w")], "input[0].type"),
        ([item("item_reference", id="i")], "input[0].type"),
        ([item({})], "input[0].type"),
        ([USER, USER | {"name": "u"}], "input[1].name"),
        ([USER | {"role": "wizard"}], "input[0].role"),
        ([USER | {"role": "tool"}], "input[0].role"),
        ([item(content="x")], "input[0].role"),
        ([{"role": "user"}], "input[0].content"),
        ([USER | {"content": ["x"]}], "input[0].content[0]"),
        ([USER | {"content": [{"type": "input_image"}]}], "input[0].content[0].type"),
        ([USER | {"content": [{"type": "input_text"}]}], "input[0].content[0].text"),
        ([USER | {"content": "\ud800"}], "input[0].content"),
        ([CALL | {"call_id": ""}], "input[0].call_id"),
        ([CALL | {"name": "a b"}], "input[0].name"),
        ([CALL | {"arguments": {}}], "input[0].arguments"),
        ([CALL | {"more": 1}], "input[0].more"),
        ([CALL, CALL], "input[1].call_id"),
        ([CALL, RESULT, RESULT], "input[2].call_id"),
        ([RESULT], "input[0].call_id"),
        ([CALL, RESULT | {"output": None}], "input[1].output"),
        ([CALL, RESULT | {"output": [{"type": "input_file"}]}], "input[1].output[0].type"),
        ([item("reasoning", content=[{"type": "text"}])], "input[0].content[0].type"),
        ([item("reasoning", summary=5)], "input[0].summary"),
        ([CALL | {"call_id": f"c{i}"} for i in range(129)], "input[128]"),
    ],
)
def test_a_wrong_input_is_named(items, field):
    found, message = refused(input=items)
    assert found == field
    assert field.partition("[")[0] in message


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"context_management": [{}]}, "context_management"),
        ({"max_tool_calls": 1}, "max_tool_calls"),
        ({"moderation": {}}, "moderation"),
        ({"messages": []}, "messages"),
        ({"n": 2}, "n"),
        ({"max_tokens": 2}, "max_tokens"),
        ({"resumable": True}, "resumable"),
        ({"response_format": {"type": "text"}}, "response_format"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "name": "f"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].function"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "f", "parameters": []}]}, "tools[0].parameters"),
        ({"tools": [{"name": f"f{i}"} for i in range(129)]}, "tools"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"text": "x"}, "text"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, "text.verbosity"),
        ({"text": {"other": 1}}, "text.other"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": "x"}, "include"),
        ({"include": ["file_search_call.results"] * 9}, "include"),
        ({"include": ["x"]}, "include[0]"),
        ({"include": [{}]}, "include[0]"),
        ({"truncation": "auto"}, "truncation"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"metadata": {"a" * 65: ""}}, "metadata"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"user": "u" * 513}, "user"),
        ({"instructions": 5}, "instructions"),
        ({"background": True, "store": False}, "store"),
        ({"background": True, "top_logprobs": 1}, "top_logprobs"),
        ({"background": True, "timing": True}, "timing"),
        ({"background": True, "include": ["message.output_text.logprobs"]}, "include"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"structured_outputs": {"regex": "a"}, "text": {"format": {"type": "json_object"}}},) * 1
        + ("structured_outputs",),
    ],
)
def test_a_wrong_field_is_named(given, field):
    assert refused(**given)[0] == field


def test_what_is_stored_nowhere_is_refused_with_a_hint():
    assert "earlier items in input" in refused(previous_response_id="resp_1")[1]


@pytest.mark.parametrize(
    "given",
    [
        {"previous_response_id": None, "conversation": None, "prompt": None},
        {"text": {"format": None, "verbosity": None}, "reasoning": {"effort": None}},
        {"tools": [], "tool_choice": "none", "context_management": []},
        {"metadata": None, "user": None, "service_tier": "flex", "safety_identifier": "s"},
        {"stream": True, "stream_options": {"include_obfuscation": False}},
    ],
)
def test_what_changes_nothing_is_taken(given):
    found = ResponseRequest.read({"input": "x"} | given)
    assert found.call("r").requests[0].prompt.messages == (ChatMessage("user", "x"),)


def test_items_become_turns():
    found = ResponseRequest.read(
        {
            "input": [
                USER,
                item("reasoning", id="rs", summary=[], content=None, encrypted_content="e"),
                item("reasoning", summary=[{"type": "summary_text", "text": "short"}]),
                CALL,
                CALL | {"call_id": "d", "status": "completed"},
                RESULT | {"call_id": "d"},
                RESULT,
                item("reasoning", content=[{"type": "reasoning_text", "text": "long"}]),
                item(role="assistant", content=[{"type": "output_text", "text": "a"}], id="m"),
                item(role="assistant", content=""),
                item("reasoning", summary=[]),
            ]
        }
    )
    calls = ToolCall("c", "f", "{}"), ToolCall("d", "f", "{}")
    assert found.input == (
        ChatMessage("user", "x"),
        ChatMessage("assistant", "", calls, reasoning="short"),
        ChatMessage("tool", "1", tool_call_id="d"),
        ChatMessage("tool", "1", tool_call_id="c"),
        ChatMessage("assistant", "a", reasoning="long"),
        ChatMessage("assistant", ""),
    )


def test_the_door_refuses_other_methods_and_bodies():
    client = TestClient(create_app(ScriptedGenerator(), metrics), "http://localhost:8000")
    assert client.get("/v1/responses").status_code == 405
    assert client.delete("/v1/responses/resp_a").status_code == 405
    assert client.post("/v1/responses", content="{}").status_code == 415
    assert client.post("/v1/responses", json=[]).status_code == 400
    missing = client.post("/v1/responses", json={}).json()["error"]
    assert (missing["param"], missing["message"]) == ("input", "input is required")
