"""Entries as bytes: what is read is what was written."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.api import Heartbeat, Tokens
from cluster.journal.entries import (
    FirstTokenStages,
    Journaled,
    entry_bytes,
    merged,
    read_entry,
)
from engine.errors import DeadlineExceeded, NotFound, Overloaded
from engine.types.sequence import SampledToken
from tests.cluster.journal.streams import summary, tokens

runs = st.builds(
    Tokens,
    st.integers(0, 127),
    st.integers(0, 2**31),
    st.lists(st.integers(0, 2**20), min_size=1, max_size=300).map(tuple),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from([None, "stop", "length"]),
)
stages = st.builds(
    FirstTokenStages, st.floats(0, 9), st.floats(0, 9), st.floats(0, 9), st.integers(0, 2**31)
)


@given(runs, st.none() | stages)
def test_tokens_are_read_as_they_were_written(run: Tokens, first: FirstTokenStages | None) -> None:
    payload = entry_bytes(run, first)
    # No protobuf message begins with a one or a two.
    assert (payload[0] in (1, 2)) == (first is None)
    entry = read_entry(7, payload, b"sealed")
    assert entry is not None
    assert (entry.sequence, entry.event, entry.first, entry.last) == (7, run, first, False)


@given(runs, st.none() | stages, st.floats(0, 1e6))
def test_an_entry_tells_when_it_was_made(
    run: Tokens, first: FirstTokenStages | None, after_s: float
) -> None:
    entry = read_entry(7, entry_bytes(run, first, after_s), b"")
    assert entry is not None
    assert entry.after_s == pytest.approx(after_s, abs=1e-3)
    last = read_entry(8, entry_bytes(summary(), None, after_s), b"")
    assert last is not None
    assert last.after_s == entry.after_s


def test_the_time_takes_no_more_room_than_the_number_of_tokens_did() -> None:
    assert len(entry_bytes(tokens(3), None, 1e6)) == 15 + len(tokens(3).text)
    later = read_entry(1, entry_bytes(tokens(3), None, 1e9), b"")
    assert later is not None
    assert later.after_s == pytest.approx(2**32 / 1000)


@given(runs)
def test_tokens_of_a_router_of_an_older_version_are_read(run: Tokens) -> None:
    """It wrote a zero, and no time; its streams go on here during an upgrade."""
    reason = (None, "stop", "length").index(run.finish_reason)
    head = struct.pack(">BBBII", 0, run.choice, reason, run.index, len(run.ids))
    payload = head + struct.pack(f">{len(run.ids)}I", *run.ids) + run.text.encode()
    entry = read_entry(7, payload, b"")
    assert entry is not None
    assert (entry.event, entry.first, entry.after_s) == (run, None, 0.0)


def test_log_probabilities_summaries_and_failures_are_read() -> None:
    sampled = (SampledToken(5, -0.5, ((5, -0.5), (6, -1.5))),)
    events: list[Journaled] = [Tokens(0, 0, (5,), "x", "stop", sampled), summary()]
    for event in events:
        entry = read_entry(1, entry_bytes(event, None), b"")
        assert entry is not None
        assert entry.event == event
    for error in (NotFound("no", field="model"), Overloaded("full", retry_after_s=2.0)):
        entry = read_entry(1, entry_bytes(error, None), b"")
        assert entry is not None
        assert entry.last
        assert (type(entry.event), str(entry.event)) == (type(error), str(error))
    late = read_entry(1, entry_bytes(DeadlineExceeded("late"), None), b"")
    assert late is not None


def test_bytes_of_another_kind_are_not_read() -> None:
    assert read_entry(1, b"", b"") is None
    assert read_entry(1, b"\xff\xff", b"") is None
    whole = entry_bytes(tokens(3, 4, last=True), None)
    assert all(read_entry(1, whole[:end], b"") is None for end in range(31))
    assert read_entry(1, whole[:2] + b"\x09" + whole[3:], b"") is None
    assert read_entry(1, whole[:-1] + b"\xff", b"") is None


def test_tokens_are_joined_by_choice_up_to_another_event() -> None:
    events = [tokens(0), tokens(0, choice=1), tokens(1), tokens(1, 2, choice=1)]
    assert merged(list(events)) == [tokens(0, 2), tokens(0, 3, choice=1)]
    assert merged([*events, Heartbeat(), tokens(2, last=True)]) == [
        tokens(0, 2),
        tokens(0, 3, choice=1),
        Heartbeat(),
        tokens(2, last=True),
    ]
    assert merged([tokens(0), tokens(1, last=True)]) == [tokens(0, 2, last=True)]
