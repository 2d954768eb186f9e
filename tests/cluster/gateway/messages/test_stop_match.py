"""Which stop sequence ended an answer, as its tokens tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.api import Tokens
from cluster.gateway.messages.stop_match import StopMatch
from engine.text.stop_strings import StopScanner


def text(ids):
    """Bytes as tokens; 0 is a special token."""
    return bytes(one for one in ids if one).decode(errors="replace")


def matched(stops, ids):
    match = StopMatch(stops, text)
    for index, one in enumerate(ids):
        match.take(Tokens(0, index, (one,), ""))
    return match.found()


@pytest.mark.parametrize(
    ("stops", "answer", "found"),
    [
        ((), b"abc", None),
        (("c",), b"abc", "c"),
        (("c",), b"abc\0", None),
        (("x", "bc", "abc"), b"abc", "abc"),
        (("\u00e9",), "a\u00e9".encode(), "\u00e9"),
        (("\u00e9",), "a\u00e9b".encode(), None),
        (("a",), b"", None),
        (("aa",), b"ba" * 5000 + b"a", "aa"),
    ],
)
def test_the_last_token_completes_it(stops, answer, found):
    assert matched(stops, list(answer)) == found


@given(
    st.lists(st.text("ab\u00e9", min_size=1, max_size=4), min_size=1, max_size=4, unique=True),
    st.text("ab\u00e9", max_size=40),
)
def test_it_is_where_the_engine_ends_the_answer(stops, answer):
    scanner, ids = StopScanner(stops), []
    for character in answer:
        ids += character.encode()
        before = scanner.push(character)
        if scanner.found:
            break
    found = matched(stops, ids)
    assert (found is not None) == scanner.found
    if found is not None:
        assert text(ids).endswith(found)
        longest = max((one for one in stops if text(ids).endswith(one)), key=len)
        assert found == longest
    assert before is not None if answer else True
