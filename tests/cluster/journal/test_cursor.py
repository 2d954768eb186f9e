"""Cursors: what a client lacks is exactly the rest, and wrong ones are refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.api import Tokens
from cluster.journal.cursor import Cursor
from engine.errors import InvalidRequest
from tests.cluster.journal.streams import tokens


@st.composite
def streams(draw: st.DrawFn) -> tuple[int, list[Tokens]]:
    """A number of choices, and their tokens in order."""
    choices = draw(st.integers(1, 4))
    lengths, events = [0] * choices, []
    turns = st.tuples(st.integers(0, choices - 1), st.integers(1, 5))
    for choice, count in draw(st.lists(turns, max_size=20)):
        events.append(tokens(lengths[choice], count, choice))
        lengths[choice] += count
    return choices, events


def lacking(events: list[Tokens], have: list[int], choices: int) -> list[Tokens]:
    cursor = Cursor(have, choices)
    found = [event for event in events if cursor.passed(event)]
    if not cursor.found:
        raise cursor.beyond()
    assert found == [event for event in events if cursor.lacks(event)]
    return found


@given(streams(), st.data())
def test_a_client_gets_exactly_what_it_lacks(
    stream: tuple[int, list[Tokens]], data: st.DataObject
) -> None:
    choices, events = stream
    sent = data.draw(st.integers(0, len(events)))
    have = [0] * choices
    for event in events[:sent]:
        have[event.choice] += len(event.ids)
    assert lacking(events, have, choices) == events[sent:]
    while have and have[-1] == 0:
        have.pop()
        assert lacking(events, have, choices) == events[sent:]


@given(streams(), st.data())
def test_any_other_cursor_is_refused(stream: tuple[int, list[Tokens]], data: st.DataObject) -> None:
    choices, events = stream
    have = data.draw(st.lists(st.integers(0, 30), min_size=choices, max_size=choices))
    ends = [{0} for _ in range(choices)]
    for event in events:
        ends[event.choice].add(event.index + len(event.ids))
    right = all(number in known for number, known in zip(have, ends, strict=True))
    if right:
        lacking(events, have, choices)
        return
    with pytest.raises(InvalidRequest) as refused:
        lacking(events, have, choices)
    assert refused.value.field == "have"
    assert refused.value.message.startswith("have")


def test_the_refusal_names_what_is_wrong() -> None:
    events = [tokens(0, 2), tokens(2, 3)]
    for have, reason in (
        ([4], r"have\[0\] is 4, inside an event with the tokens 2 to 5"),
        ([9], r"have\[0\] is 9, which is more than the journal has"),
        ([0, 0], "have has 2 numbers, and the stream has 1 choices"),
        ([-1], "have must not be negative"),
    ):
        with pytest.raises(InvalidRequest, match=reason):
            lacking(events, have, 1)
