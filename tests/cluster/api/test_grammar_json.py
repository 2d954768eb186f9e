"""Every JSON form of a grammar is read, and a wrong one is refused by its field."""

from __future__ import annotations

import pytest

from cluster.api.grammar_json import (
    only_one,
    read_grammar,
    read_own_grammar,
    read_response_format,
    read_structured_outputs,
    read_text_format,
)
from engine.errors import InvalidRequest
from engine.types.grammar import JSON_OBJECT, Grammar

SCHEMA = {"b": {"é": 1}, "a": 2}
TEXT = '{"b":{"é":1},"a":2}'
OBJECT = Grammar("json_schema", JSON_OBJECT)
NAMED = {"name": "n", "strict": True, "schema": SCHEMA, "description": "d"}


@pytest.mark.parametrize(
    ("read", "value", "grammar"),
    [
        (read_response_format, {"type": "text"}, None),
        (read_response_format, {"type": "json_object"}, OBJECT),
        (
            read_response_format,
            {"type": "json_schema", "json_schema": NAMED},
            ("json_schema", TEXT),
        ),
        (read_text_format, {"type": "text"}, None),
        (read_text_format, {"type": "json_object"}, OBJECT),
        (read_text_format, {"type": "json_schema", **NAMED}, ("json_schema", TEXT)),
        (read_structured_outputs, {"json": SCHEMA, "regex": None}, ("json_schema", TEXT)),
        (read_structured_outputs, {"json": TEXT}, ("json_schema", TEXT)),
        (read_structured_outputs, {"json_object": True}, OBJECT),
        (read_structured_outputs, {"regex": "a", "json_object": False}, ("regex", "a")),
        (read_structured_outputs, {"grammar": "start: A"}, ("lark", "start: A")),
        (read_structured_outputs, {"choice": ["a", "é"]}, ("choice", '["a", "é"]')),
        (read_structured_outputs, {}, None),
        (read_own_grammar, {"json_schema": True}, ("json_schema", "true")),
        (read_own_grammar, {"choices": ["a"]}, ("choice", '["a"]')),
        (read_own_grammar, {"lark": "start: A"}, ("lark", "start: A")),
    ],
)
def test_every_form_is_read(read, value, grammar):
    assert read(value) == (Grammar(*grammar) if isinstance(grammar, tuple) else grammar)


@pytest.mark.parametrize(
    ("read", "value", "field"),
    [
        (read_response_format, "json_object", "response_format"),
        (read_response_format, {"type": "xml"}, "response_format.type"),
        (read_response_format, {"type": "text", "schema": {}}, "response_format"),
        (read_response_format, {"type": "json_schema"}, "response_format.json_schema"),
        (
            read_response_format,
            {"type": "json_schema", "json_schema": {"name": "n"}},
            "response_format.json_schema.schema",
        ),
        (
            read_response_format,
            {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}},
            "response_format.json_schema.strict",
        ),
        (
            read_response_format,
            {"type": "json_schema", "json_schema": {"schema": [1]}},
            "response_format",
        ),
        (read_structured_outputs, {"json": {}, "regex": "a"}, "structured_outputs"),
        (read_structured_outputs, {"structural_tag": "x"}, "structured_outputs"),
        (read_structured_outputs, {"choice": "a"}, "structured_outputs"),
        (read_structured_outputs, {"regex": "\ud800"}, "structured_outputs"),
        (read_own_grammar, {"choices": []}, "grammar"),
        (read_own_grammar, {"choices": [1]}, "grammar"),
        (read_own_grammar, {"regex": ""}, "grammar"),
        (read_own_grammar, {"json_schema": {"a": "\ud800"}}, "grammar"),
        (read_own_grammar, {"json_schema": {"a": "x" * 131_072}}, "grammar"),
    ],
)
def test_wrong_forms_name_their_field(read, value, field):
    with pytest.raises(InvalidRequest) as caught:
        read(value)
    assert caught.value.field == field


def test_an_answer_has_one_grammar():
    one = read_grammar("regex", "a", "guided_regex")
    assert one.field == "guided_regex"
    assert only_one({"response_format": None, "guided_regex": one}) == one
    assert only_one({"response_format": None}) is None
    with pytest.raises(InvalidRequest, match="by response_format; give one") as caught:
        only_one({"response_format": one, "guided_regex": one})
    assert caught.value.field == "guided_regex"
