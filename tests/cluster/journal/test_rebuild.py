"""A stream that another router goes on with is the one that was made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.api import Summary, Tokens
from cluster.api.tracing import Trace
from cluster.journal.entries import FirstTokenStages, Journaled, JournalEntry, journaled_request
from cluster.journal.rebuild import rebuilt
from cluster.journal.store import JournalStore
from engine.errors import Internal
from tests.cluster.journal.streams import STARTED, record, request, running, summary, tokens

FIRST = FirstTokenStages(0.25, 0.5, 1.0, 16, "decode-0", prefill_share_s=0.125)


def entries(*events: Journaled) -> list[JournalEntry]:
    return [JournalEntry(number, event, None, b"") for number, event in enumerate(events, 1)]


async def test_a_stream_is_rebuilt_from_the_journal(store: JournalStore) -> None:
    async with running(store, "a") as router:
        stream, client = router.open(n=2, arrived_at=None)
        stream.put(tokens(0), FIRST)
        stream.put(tokens(1, 3))
        stream.put(tokens(0, 2, choice=1), replace(FIRST, ttft_s=2.0))
        stream.put(tokens(2, choice=1, last=True))
        await router.wrote_events(client, 2)
    found = await store.find(stream.stream_id, "acme")
    result = rebuilt(found.record, await store.read_all(stream.stream_id))
    assert result.request == request(n=2)
    assert result.started == replace(STARTED, note="chat")
    assert result.model_identity == "weights-1"
    assert result.arrived_at == found.record.arrived_at
    first, second = result.choices
    assert (first.output, first.finished, first.first) == ([100, 101, 102, 103], False, FIRST)
    assert (second.output, second.finished) == ([100, 101, 102], True)
    assert second.first == replace(FIRST, ttft_s=2.0)
    assert result.last is None
    assert not result.finished
    assert sum((event.ids for _, event in second.events), ()) == (100, 101, 102)
    came_s = [after_s for one in result.choices for after_s, _ in one.events]
    assert 0 <= min(came_s) <= max(came_s) < 10


def test_how_a_stream_ended_is_known() -> None:
    done = rebuilt(record(), entries(tokens(0, last=True), summary()))
    assert done.finished
    assert done.last == summary()


def test_what_its_client_called_it_is_known():
    trace = Trace("mine", f"00-{'1' * 32}-{'2' * 16}-01")
    asked = replace(request(), trace=trace)
    found = rebuilt(journaled_request(asked, STARTED, 1.0, "weights-1", 0.5), ())
    assert (found.request.trace, found.admitted_s) == (trace, 0.5)


def test_where_the_prompt_was_computed_is_known_after_a_failover_too():
    def local(first_on: str, then_on: str) -> bool:
        firsts = [
            replace(FIRST, prefill_replica="decode-0", decode_replica=one)
            for one in (first_on, then_on)
        ]
        found = [
            JournalEntry(number, tokens(number - 1), first, b"")
            for number, first in enumerate(firsts, 1)
        ]
        return rebuilt(record(), found).choices[0].local

    assert local("decode-0", "decode-1")
    assert not local("decode-1", "decode-0")


@pytest.mark.parametrize(
    "wrong",
    [
        [tokens(1)],
        [tokens(0), tokens(0)],
        [tokens(0, last=True), tokens(1)],
        [tokens(0, choice=1)],
        [summary(), tokens(0)],
    ],
)
def test_entries_that_contradict_each_other_are_refused(wrong: list[Tokens | Summary]) -> None:
    with pytest.raises(Internal):
        rebuilt(record(), entries(*wrong))
