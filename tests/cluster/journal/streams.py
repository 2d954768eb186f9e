"""Requests, tokens and a router with a writer, as the tests of the journal want them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from cluster.api import (
    ChoiceSummary,
    Event,
    GenerateRequest,
    Resumability,
    Started,
    Summary,
    TokenPrompt,
    Tokens,
)
from cluster.journal.entries import journaled_request
from cluster.journal.keys import new_stream_id
from cluster.journal.store import JournalStore
from cluster.journal.stream import JournaledStream
from cluster.journal.writer import JournalWriter
from engine.errors import TandemError
from engine.types.sampling_params import SamplingParams
from protos.journal_pb2 import JournaledRequest
from tests.eventually import eventually

STARTED = Started("request-1", "demo", 3, 7)


def request(n: int = 1, tenant: str = "acme") -> GenerateRequest:
    return GenerateRequest(
        TokenPrompt((1, 2, 3)),
        SamplingParams(max_tokens=64, seed=7, stop=("end",)),
        n=n,
        request_id="request-1",
        tenant=tenant,
        resumable=True,
        note="chat",
    )


def record(n: int = 1, tenant: str = "acme", arrived_at: float | None = None) -> JournaledRequest:
    at = time.time() if arrived_at is None else arrived_at
    return journaled_request(request(n, tenant), STARTED, at, "weights-1")


def tokens(index: int, count: int = 1, choice: int = 0, last: bool = False) -> Tokens:
    ids = tuple(range(100 + index, 100 + index + count))
    text = "".join(f"{one} " for one in ids)
    return Tokens(choice, index, ids, text, "length" if last else None)


def summary(completion_tokens: int = 1) -> Summary:
    return Summary(
        3, completion_tokens, (ChoiceSummary(0, 0.1, 0.2, 0, 0.3, 0, 0, 1, 0, "p", "d"),), 1.5
    )


def unframed(text: bytes) -> bytes:
    """A text that has its length before it (`cluster.journal.batches.framed`)."""
    assert int.from_bytes(text[:4], "big") == len(text) - 4
    return text[4:]


@dataclass
class Client:
    """What a client was sent."""

    events: list[Event | TandemError] = field(default_factory=list)
    lost: bool = False

    def take(self, event: Event | TandemError) -> None:
        assert not self.lost, "an event came after the stream was lost"
        self.events.append(event)

    def lose(self) -> None:
        self.lost = True

    @property
    def ids(self) -> list[int]:
        ids: list[int] = []
        for event in self.events:
            if isinstance(event, Tokens):
                assert event.index == len(ids)
                ids += event.ids
        return ids

    @property
    def last(self) -> Event | TandemError | None:
        return self.events[-1] if self.events else None

    @property
    def suspensions(self) -> list[bool]:
        return [event.suspended for event in self.events if isinstance(event, Resumability)]


@dataclass
class RouterOfTest:
    """A router's writer while it runs, and its clients by stream."""

    store: JournalStore
    writer: JournalWriter
    cancelled: list[str]
    clients: dict[str, Client] = field(default_factory=dict)

    def open(self, stream_id: str | None = None, **fields: Any) -> tuple[JournaledStream, Client]:
        client, stream_id = Client(), stream_id or new_stream_id()
        stream = self.writer.open(stream_id, record(**fields), client.take, client.lose)
        stream.put(STARTED)
        return stream, client

    async def wrote(self, client: Client, count: int) -> None:
        await eventually(lambda: len(client.ids) >= count)

    async def wrote_events(self, client: Client, count: int) -> None:
        """Wait for so many events after Started."""
        await eventually(lambda: len(client.events) > count)


@asynccontextmanager
async def running(store: JournalStore, name: str) -> AsyncIterator[RouterOfTest]:
    cancelled: list[str] = []
    writer = JournalWriter(store, name, cancelled.append)
    task = asyncio.create_task(writer.run())
    try:
        await eventually(lambda: not writer.suspended)
        yield RouterOfTest(store, writer, cancelled)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def stored_ids(store: JournalStore, stream_id: str) -> list[int]:
    """The tokens of a stream of one choice in the journal."""
    entries = await store.read_all(stream_id)
    return [one for entry in entries if isinstance(entry.event, Tokens) for one in entry.event.ids]


async def calls(raw: Any) -> dict[str, int]:
    """How often Redis carried out each command since CONFIG RESETSTAT."""
    found = await raw.info("commandstats")
    return {name.removeprefix("cmdstat_"): one["calls"] for name, one in found.items()}
