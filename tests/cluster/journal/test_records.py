"""Seals of the journal: nothing that was forged, changed or moved is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.journal.keys import JournalKeys, is_stream_id, new_stream_id
from cluster.journal.records import JournalSeal
from tests.cluster.discovery.members import OTHER_SECRET, SECRET
from tests.cluster.journal.streams import record, unframed

SEAL = JournalSeal(SECRET, JournalKeys())


def test_a_request_is_read_where_it_was_stored() -> None:
    one, stored = new_stream_id(), record()
    assert SEAL.opened_request(one, SEAL.sealed_request(one, stored)) == stored


def test_a_forged_moved_or_changed_request_is_not_read() -> None:
    one, other = new_stream_id(), new_stream_id()
    sealed = SEAL.sealed_request(one, record())
    assert SEAL.opened_request(other, sealed) is None
    assert JournalSeal(SECRET, JournalKeys("elsewhere")).opened_request(one, sealed) is None
    forged = JournalSeal(OTHER_SECRET, JournalKeys()).sealed_request(one, record())
    assert SEAL.opened_request(one, forged) is None
    # The tenant is in the request, so it is sealed with it.
    assert b"acme" in sealed
    assert SEAL.opened_request(one, sealed.replace(b"acme", b"evil")) is None
    assert SEAL.opened_request(one, b"") is None


@given(st.integers(1, 2**40), st.integers(1, 2**32 - 1), st.binary(max_size=64), st.data())
def test_an_entry_is_read_at_its_place_alone(
    sequence: int, fence: int, payload: bytes, data: st.DataObject
) -> None:
    seal = SEAL.entries("A" * 22)
    entry = unframed(seal.framed(sequence, fence, payload))
    assert seal.opened(sequence, entry) == (fence, payload)
    assert seal.opened(sequence + 1, entry) is None
    assert SEAL.entries("B" * 22).opened(sequence, entry) is None
    at = data.draw(st.integers(0, len(entry) - 1))
    changed = entry[:at] + bytes([entry[at] ^ 1]) + entry[at + 1 :]
    assert seal.opened(sequence, changed) is None
    assert seal.opened(sequence, entry[:at]) is None


def test_ids_cannot_be_guessed_and_have_one_form() -> None:
    ids = {new_stream_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(map(is_stream_id, ids))


@pytest.mark.parametrize("text", ["", "x", "é" * 22, "A" * 21 + "\n", "A" * 22 + "\n", "A" * 23])
def test_other_texts_are_no_ids(text: str) -> None:
    assert not is_stream_id(text)
