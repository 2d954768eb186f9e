"""The share of schemas that compile, and why others do not."""

from __future__ import annotations

import json

import pytest

from bench.engine.guided_answers import byte_level_tokenizer
from bench.engine.schema_share import (
    ALONE,
    OURS,
    figures,
    read_schemas,
    reason_of,
    tried_alone,
    tried_here,
)

SCHEMAS = ['{"type": "object"}', '{"not": {}}', '{"type": "objekt"}', '{"pattern": "(?=a)"}', "[]"]
REASONS = ["keyword not", "no valid schema", "a pattern beyond regular expressions"]
VOCABULARY = 2048


@pytest.mark.parametrize("way", [tried_here, tried_alone])
def test_each_refusal_has_its_reason(way):
    messages = way(SCHEMAS, byte_level_tokenizer(VOCABULARY), VOCABULARY)
    assert messages[0] is None
    assert [reason_of(message) for message in messages[1:4]] == REASONS
    assert messages[4] is not None


def test_the_share_and_the_reasons_are_counted():
    found = figures({OURS: [None, None, '#: Unimplemented keys: ["not"]'], ALONE: [None] * 3})
    assert found[f"{OURS}: compiled"].value == pytest.approx(2 / 3, abs=1e-5)
    assert found[f"{OURS}: refused, keyword not"].value == 1
    assert found[f"{ALONE}: compiled"].value == 1


def test_a_folder_is_sampled(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.json").write_text(json.dumps({"type": number}))
    assert len(read_schemas(tmp_path, 3)) == 3
    assert '{"type":4}' in read_schemas(tmp_path, 9)
