"""The tail of a stream: what a client lacks of it, read from the journal while it is written."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable

from cluster.api import Summary, Tokens
from cluster.journal.cursor import Cursor
from cluster.journal.entries import JournalEntry
from cluster.journal.store import PIECE, JournalStore, StreamState
from engine.errors import NotFound, TandemError, Unavailable

_POLL_S = 0.02
# Bound: polls of all tails in a second; many tails poll less often.
_POLLS_PER_S = 500
# A stream of this router wakes its tails.
_WATCHED_POLL_S = 1.0
# How often a tail tells the owner that somebody listens.
LISTENING_S = 2.0
# Bound: how long the journal may be behind a client, while the owner lives.
_BEHIND_S = 1.0
# Bound: a tail goes on for so long without an answer of Redis.
_PATIENCE_S = 5.0


class StreamOrphaned(Exception):
    """The router that owned the stream is dead, and the stream has not ended."""


class JournalTail:
    """Reads a stream from a client's cursor on, in pieces, so that a slow reader holds little.

    `watch` is that of the writer of this router. Without `follow` its events end behind what the
    journal has.
    """

    def __init__(
        self,
        store: JournalStore,
        stream_id: str,
        cursor: Cursor,
        watch: Callable[[str, asyncio.Event], Callable[[], None] | None],
        *,
        follow: bool = True,
    ) -> None:
        self._store = store
        self._stream_id = stream_id
        self._cursor = cursor
        self._watch = watch
        self._follow = follow
        self._position = 0
        self._listened_s = self._failed_s = -math.inf

    async def find(self, had: Callable[[Tokens], object] = lambda tokens: None) -> None:
        """Go to the first entry that the client lacks. `had` gets those that it has.

        Raises InvalidRequest where the client has more than the journal, or a part of an entry,
        and Unavailable or NotFound as the store does. The journal of a living owner may be behind
        for a moment.
        """
        position, begin, until_s = 0, None, time.monotonic() + _BEHIND_S
        while not self._cursor.found:
            state, entries = await self._store.read(self._stream_id, position)
            if not entries:
                # While Redis was away, a living owner sent what it has yet to write.
                if not state.alive or state.ended or time.monotonic() >= until_s:
                    raise self._cursor.beyond()
                await asyncio.sleep(_POLL_S)
            for entry in entries:
                position = entry.sequence
                if isinstance(entry.event, Tokens):
                    if self._cursor.passed(entry.event):
                        begin = position - 1 if begin is None else begin
                    else:
                        had(entry.event)
                if self._cursor.found:
                    break
        self._position = position if begin is None else begin

    async def events(self) -> AsyncIterator[Tokens | Summary]:
        """The events that the client lacks, up to the Summary; raises the stream's failure.

        Raises StreamOrphaned where its owner is dead: `events` goes on once another router owns it.
        Raises Unavailable where Redis is away for long, and NotFound where the stream is gone.
        """
        woken = asyncio.Event()
        unwatch = self._watch(self._stream_id, woken)
        answered_s = time.monotonic()
        self._store.tails += 1
        try:
            while True:
                woken.clear()
                try:
                    state, entries = await self._read()
                    answered_s = time.monotonic()
                except Unavailable:
                    self._failed_s = time.monotonic()
                    if self._failed_s - answered_s > _PATIENCE_S:
                        raise
                    state, entries = None, []
                for entry in entries:
                    self._position = entry.sequence
                    if isinstance(entry.event, TandemError):
                        entry.event.ended_stream = True
                        raise entry.event
                    if isinstance(entry.event, Summary):
                        yield entry.event
                        return
                    if self._cursor.lacks(entry.event):
                        yield entry.event
                poll_s = max(_POLL_S, self._store.tails / _POLLS_PER_S)
                if not entries:
                    self._check(state)
                    if state is not None and not self._follow:
                        return
                    await _within(woken, poll_s if unwatch is None else _WATCHED_POLL_S)
                if len(entries) < PIECE:
                    await asyncio.sleep(max(0.0, answered_s + poll_s - time.monotonic()))
        finally:
            self._store.tails -= 1
            if unwatch is not None:
                unwatch()

    async def _read(self) -> tuple[StreamState, list[JournalEntry]]:
        now = time.monotonic()
        listening = now - self._listened_s >= LISTENING_S
        found = await self._store.read(self._stream_id, self._position, listening=listening)
        if listening:
            self._listened_s = now
        return found

    def _check(self, state: StreamState | None) -> None:
        """Raise where nothing more will come: NotFound without an end, or StreamOrphaned.

        An owner without a lease may live where Redis was away just now.
        """
        if state is None:
            return
        if state.ended:
            raise NotFound("the stream ended too long ago", field="stream_id")
        lease_s = self._store.lease_s
        if not state.alive and time.monotonic() - self._failed_s >= lease_s:
            raise StreamOrphaned(self._stream_id)


async def _within(woken: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await woken.wait()
    except TimeoutError:
        pass
