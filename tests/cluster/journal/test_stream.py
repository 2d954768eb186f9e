"""A stream without Redis: whatever is lost on the way, each event is handed on and written once."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from cluster.api import Heartbeat, Tokens
from cluster.journal.batches import CREATE, Appended, NewStream
from cluster.journal.entries import read_entry
from cluster.journal.records import EntrySeal
from cluster.journal.stream import JournaledStream
from tests.cluster.journal.streams import Client, summary, tokens

SEAL = EntrySeal(b"a key")
STREAM_ID = "A" * 22
MOST_BYTES = 100


@dataclass
class FakeRedis:
    """What the script of an append does, for one stream."""

    created: bool = False
    entries: list[bytes] = field(default_factory=list)

    def append(self, batch: bytes) -> Appended:
        stream_id, fence, flags, first, count = struct.unpack_from(">22sIBII", batch)
        assert (stream_id, fence) == (STREAM_ID.encode(), 1)
        texts, at = [], 35
        while at < len(batch):
            (size,) = struct.unpack_from(">I", batch, at)
            texts.append(batch[at + 4 : at + 4 + size])
            at += 4 + size
        if flags & CREATE:
            self.created, texts = True, texts[2:]
        assert len(texts) == count
        if not self.created:
            return Appended.GONE
        for number, entry in enumerate(texts, first):
            assert number <= len(self.entries) + 1, "no entry is left out"
            if number > len(self.entries):
                self.entries.append(entry)
            else:
                assert self.entries[number - 1] == entry, "an entry never changes"
        return Appended.WRITTEN

    def tokens(self) -> list[Tokens]:
        found = []
        for sequence, sealed in enumerate(self.entries, 1):
            opened = SEAL.opened(sequence, sealed)
            assert opened is not None
            entry = read_entry(sequence, opened[1], sealed)
            assert entry is not None
            if isinstance(entry.event, Tokens):
                found.append(entry.event)
        return found


class Play:
    """A stream, its client and its Redis."""

    def __init__(self) -> None:
        self.redis, self.client = FakeRedis(), Client()
        new = NewStream(b"request", b"acme")
        self.stream = JournaledStream(
            STREAM_ID, 1, SEAL, new, self.client.take, self.client.lose, lambda *_: None
        )
        self.put = [0, 0]

    def take(self, step: str) -> None:
        stream = self.stream
        if step in ("0", "1"):
            choice = int(step)
            stream.put(tokens(self.put[choice], choice=choice))
            self.put[choice] += 1
        elif step == "other":
            stream.put(Heartbeat())
        elif step == "written":
            stream.answered(self.redis.append(stream.gather(MOST_BYTES)))
        elif step == "answer lost":
            self.redis.append(stream.gather(MOST_BYTES))
            stream.suspend()
        elif step == "late":
            stream.gather(MOST_BYTES)
            stream.suspend()
        elif step == "restarted":
            self.redis = FakeRedis()
            stream.suspend()
            stream.restart()
        self.check()

    def check(self) -> None:
        """Each choice is in order. What was sent can be resumed where the client believes so."""
        sent = [event for event in self.client.events if isinstance(event, Tokens)]
        seen, written = [0, 0], [0, 0]
        for event in sent:
            assert event.index == seen[event.choice]
            seen[event.choice] += len(event.ids)
        for event in self.redis.tokens():
            written[event.choice] += len(event.ids)
        if self.stream.suspended:
            assert seen == self.put, "nothing waits"
        told = self.client.suspensions
        if not (told and told[-1]) and not self.stream.suspended:
            assert all(one <= other for one, other in zip(seen, written, strict=True))

    def finish(self) -> None:
        for _ in range(200):
            if not self.stream.pending and not self.stream.suspended:
                break
            self.take("written")
        sent = [event for event in self.client.events if isinstance(event, Tokens)]
        assert sum(len(event.ids) for event in sent) == sum(self.put)
        # The client can resume behind any event that it was sent.
        ends = {(event.choice, event.index + len(event.ids)) for event in self.redis.tokens()}
        assert {(event.choice, event.index + len(event.ids)) for event in sent} <= ends
        assert self.client.suspensions == [True, False] * (len(self.client.suspensions) // 2)


steps = st.lists(
    st.sampled_from(["0", "1", "0", "1", "other", "written", "answer lost", "late", "restarted"]),
    max_size=60,
)


@given(steps)
def test_every_event_is_handed_on_and_written_once(steps: list[str]) -> None:
    play = Play()
    for step in steps:
        play.take(step)
    play.finish()


@given(steps)
def test_a_stream_ends_whatever_happened(steps: list[str]) -> None:
    play = Play()
    for step in steps:
        play.take(step)
    play.stream.put(summary())
    play.stream.put(Heartbeat())
    for _ in range(200):
        if play.stream.over:
            break
        play.take("written")
    assert play.stream.over
    assert play.client.last == summary()
    assert play.client.events.count(summary()) == 1


def test_a_client_is_told_where_events_were_on_their_way_to_redis() -> None:
    play = Play()
    for step in ("0", "answer lost"):
        play.take(step)
    assert play.client.suspensions == [True]


def test_events_beyond_what_was_written_wait() -> None:
    play = Play()
    for index in range(20):
        play.take("0")
        play.stream.put(Heartbeat())  # so that the tokens are not joined
        assert len(play.client.ids) == 0 < index + 1
    play.take("written")
    assert 0 < len(play.client.ids) < 20
    play.finish()
    assert len(play.client.ids) == 20


def test_a_lost_stream_hands_on_nothing_that_it_held() -> None:
    play = Play()
    play.take("0")
    play.take("written")
    play.take("0")
    play.stream.gather(MOST_BYTES)
    play.take("0")
    play.stream.answered(Appended.FENCED)
    assert play.client.lost
    play.take("0")
    play.stream.suspend()
    assert play.client.ids == [100]
    assert play.stream.over
