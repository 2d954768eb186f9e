"""The blocks of a message are the same, in whatever pieces an answer comes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api import Tokens, ToolCallDelta
from cluster.gateway.messages.blocks import BlockEvents, WholeBlocks
from cluster.parsing.answer_parser import AnswerParser
from tests.cluster.parsing.reading import form_of
from tests.cluster.parsing.test_answer_parser import answers

CALL = '<tool_call>{"name": "get", "arguments": {"a": 1}}</tool_call>'


def events_of(form, pieces, thinking=True):
    parser, blocks, found = AnswerParser(form), BlockEvents(thinking), []
    for index, piece in enumerate(pieces):
        finish = "stop" if index == len(pieces) - 1 else None
        found += blocks.take(parser.take(Tokens(0, index, (index,), piece, finish)))
    return [*found, *blocks.end()]


def whole(events):
    blocks = WholeBlocks()
    for event in events:
        blocks.take(event)
    return blocks.json()


def check_order(events):
    """Each block has a start, pieces and a stop, and no block begins before."""
    opened, at = None, -1
    for event in events:
        kind = event["type"].removeprefix("content_block_")
        if kind == "start":
            assert opened is None and event["index"] == at + 1
            opened = at = event["index"]
        else:
            assert opened == event["index"]
            assert kind == "stop" or list(event["delta"].values())[1] != ""
            opened = None if kind == "stop" else opened
    assert opened is None


@settings(max_examples=300, deadline=None)
@given(
    answers(),
    st.sampled_from(["", "hermes", "llama3", "mistral", "deepseek", "response_template"]),
    st.booleans(),
    st.booleans(),
)
def test_pieces_at_any_split_give_the_same_blocks(answer, calls, thinks, inside):
    text, pieces = answer
    reasoning = "think" if thinks and calls != "response_template" else ""
    form = form_of(calls, reasoning=reasoning, inside=inside)
    by_pieces, by_characters = events_of(form, pieces), events_of(form, list(text))
    check_order(by_pieces)
    check_order(by_characters)
    assert whole(by_pieces) == whole(by_characters) == whole(events_of(form, [text]))


def test_text_before_between_and_behind_calls_in_one_piece_keeps_its_place():
    form = form_of("hermes", reasoning="think")
    found = whole(events_of(form, [f"<think>Well</think>A {CALL}B{CALL} C"]))
    assert [block["type"] for block in found] == [
        *("thinking", "text", "tool_use", "text", "tool_use", "text")
    ]
    assert found[0] == {"type": "thinking", "thinking": "Well", "signature": ""}
    assert "".join(block.get("text", "") for block in found) == "A B C"
    assert found[2]["name"] == "get" and found[2]["input"] == {"a": 1}
    assert found[2]["id"] != found[4]["id"]


def test_reasoning_that_is_not_to_be_shown_gives_no_block():
    form = form_of("", reasoning="think")
    (text,) = whole(events_of(form, ["<think>We", "ll</think>A"], thinking=False))
    assert text == {"type": "text", "text": "A"}


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ("", {}),
        ("{}", {}),
        ('{"a": [1, {"b": "c"}]}', {"a": [1, {"b": "c"}]}),
        ('{"a": 1, "b": [2', {"a": 1, "b": [2]}),
        ('{"a": 1, "b', {"a": 1}),
        ('{"a": NaN}', {"INVALID_JSON": '{"a": NaN}'}),
        ("{a}", {"INVALID_JSON": "{a}"}),
        ("[1]", {"INVALID_JSON": "[1]"}),
        ("[" * 5000, {"INVALID_JSON": "[" * 5000}),
        ('{"a": 1e999}', {"INVALID_JSON": '{"a": 1e999}'}),
    ],
)
def test_the_input_of_a_call_is_always_an_object(arguments, given):
    blocks = BlockEvents(thinking=True)
    call = ToolCallDelta(0, "x", "get", arguments)
    events = [*blocks.take(Tokens(0, 0, (1,), "", None, tool_calls=(call,))), *blocks.end()]
    (found,) = whole(events)
    assert found == {"type": "tool_use", "id": "x", "name": "get", "input": given}
    json.dumps(found, allow_nan=False)
