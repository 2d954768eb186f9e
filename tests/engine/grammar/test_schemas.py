"""Random answers by many schemas: each that ends by itself is valid."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from bench.core.json_schemas import make_schemas
from engine.types.grammar import Grammar
from tests.engine.grammar.walks import new_compiler, tokens_of, walk

SCHEMAS = make_schemas(300, seed=1)


@pytest.fixture(scope="module")
def compiler():
    return new_compiler()


def test_every_answer_that_ends_is_valid(compiler):
    ended = 0
    for seed, schema in enumerate(SCHEMAS):
        Draft202012Validator.check_schema(schema)
        text = walk(compiler, Grammar("json_schema", json.dumps(schema)), seed)
        if text is not None:
            Draft202012Validator(schema).validate(json.loads(text))
            ended += 1
    assert ended >= 250


def test_an_answer_has_little_whitespace_in_one_place(compiler):
    grammar = Grammar("json_schema", '{"type": "array", "items": {"type": "null"}}')
    matcher = compiler.compile(grammar).matcher().tokens
    assert matcher.try_consume_tokens(tokens_of("[" + " " * 100)) == 1 + 32
