"""Large JSON is parsed as `json.loads` does, within bounds."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api import bounded_json
from cluster.api.limits import MAX_JSON_VALUES, MAX_PROMPT_TOKENS, MAX_REQUEST_BYTES
from engine.errors import InvalidRequest

numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
documents = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)
MESSAGES = {
    "Expecting value",
    "Expecting ',' delimiter",
    "Expecting ':' delimiter",
    "Expecting property name enclosed in double quotes",
    "Extra data",
    "Invalid \\escape",
    "Invalid control character at",
    "Invalid \\uXXXX escape",
    "Unterminated string starting at",
}
SPACE = " " * (bounded_json.STEP_CHARACTERS + 1)


def refuse(name: str) -> None:
    raise InvalidRequest(name)


def outcome(parse, text: str) -> object:
    try:
        return parse(text)
    except json.JSONDecodeError as error:
        return error.msg


@settings(max_examples=300, deadline=None)
@given(documents, st.integers(0, 200), st.sampled_from(["", ",", "]", "}", '"', "1", " "]))
def test_the_same_as_the_fast_decoder(document, at, junk):
    text = json.dumps(document, ensure_ascii=False)
    broken = text[:at] + junk + text[at:]
    for one in (text, broken):
        expected = outcome(lambda t: json.loads(t, parse_constant=refuse), one + SPACE)
        found = outcome(lambda t: bounded_json.parse(t, refuse), one + SPACE)
        # Which of two errors comes first may differ; whether there is one may not.
        assert found == expected or (found in MESSAGES and expected in MESSAGES)


@pytest.mark.parametrize("ids", [[], [1], list(range(100_000)), [1.5, None, True, -2] * 9000])
def test_lists_of_numbers_come_in_pieces(ids):
    for separators in ((",", ":"), (", ", ": "), (" ,\n", ":")):
        text = json.dumps({"prompt": ids, "n": 1}, separators=separators)
        assert bounded_json.parse(text + SPACE, refuse) == {"prompt": ids, "n": 1}


@pytest.mark.parametrize("hole", [",,", ", ,", ",]", " 1 2 ", "1 1,"])
def test_a_hole_in_a_list_is_no_json(hole):
    text = '{"prompt":[' + "1," * 40_000 + hole + "1" + ",1" * 40_000 + "]}"
    with pytest.raises(json.JSONDecodeError):
        bounded_json.parse(text, refuse)


@pytest.mark.parametrize(
    "value",
    [
        "[" + "[1]," * MAX_JSON_VALUES + "[1]]",
        "[" + '"",' * MAX_JSON_VALUES + '""]',
        "[" + "1," * MAX_PROMPT_TOKENS + "1]",
        "{" + ",".join(f'"{i}":1' for i in range(MAX_JSON_VALUES + 1)) + "}",
        "1" * 20_000,
        "1." + "1" * 20_000,
        "[" * 10_000 + "]" * 10_000,
    ],
    ids=["lists", "texts", "ids", "keys", "integer", "float", "nesting"],
)
def test_beyond_a_bound_the_field_is_named(value):
    with pytest.raises(InvalidRequest) as found:
        bounded_json.parse('{"model":"a","prompt":' + value + ",\n" + SPACE + '"n":1}', refuse)
    assert found.value.field == "prompt"


@pytest.mark.parametrize("text", ["NaN", "[NaN]", "[1,-Infinity]", '{"a":Infinity}'])
def test_constants_are_refused(text):
    with pytest.raises(InvalidRequest):
        bounded_json.parse(text + SPACE, refuse)


def test_only_digits_of_ascii_are_numbers():
    with pytest.raises((InvalidRequest, json.JSONDecodeError)):
        bounded_json.parse('{"n": \u0661' + SPACE + "}", refuse)


def filled(unit: str) -> str:
    """A list of 4 MiB of that unit."""
    return "[" + f"{unit}," * ((MAX_REQUEST_BYTES - 2) // (len(unit) + 1) - 1) + unit + "]"


@pytest.mark.parametrize(
    ("text", "most_mib"),
    [
        (filled("[]"), 8),
        (filled("{}"), 8),
        (filled('""'), 8),
        (filled('{"a":[]}'), 8),
        (filled("[" * 100 + "]" * 100), 8),
        (filled("true"), 12),
        # The largest list of token ids: each is a number of Python, of 36 bytes with its place.
        (filled("999"), 48),
        (filled("1e9"), 48),
        # One character outside of the first plane, and all have four bytes.
        ('{"a":"' + "a" * (MAX_REQUEST_BYTES - 20) + '\U0001f600"}', 48),
    ],
    ids=["lists", "objects", "texts", "keys", "nesting", "words", "ids", "floats", "wide"],
)
def test_no_document_takes_many_times_its_bytes(text, most_mib):
    tracemalloc.start()
    try:
        with suppress(InvalidRequest, json.JSONDecodeError):
            bounded_json.parse(text, refuse)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < most_mib << 20
