"""A stream that is taken over, with a real journal and a scripted router behind it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from cluster.config.journal import JournalConfig
from cluster.journal.bounds import JournalBounds
from cluster.journal.store import StoredStream, StreamState, TakeOver
from cluster.router.resumable.takeover import StreamTakeover
from engine.errors import Cancelled
from tests.cluster.journal.streams import record


class Running:
    """A request that runs, and why it was cancelled."""

    def __init__(self):
        self.why = None

    def cancel(self, error):
        self.why = error


class Beside:
    """Store, writer and router of a stream whose owner is dead."""

    def __init__(self, *, cancelled):
        self.running = Running()
        self._cancelled = cancelled

    @asynccontextmanager
    async def taking(self, stream_id):
        yield TakeOver("taken", 2, self._cancelled)

    async def read_all(self, stream_id):
        return []

    def check_room(self, choices):
        pass

    def go_on(self, built, open_stream):
        return self.running


async def taken_over(*, cancelled):
    beside = Beside(cancelled=cancelled)
    bounds = JournalBounds(JournalConfig())
    takeover = StreamTakeover(beside, beside, bounds, {}, "weights-1", beside)
    stored = StoredStream("a" * 22, record(), StreamState("dead", False, False, cancelled))
    assert await asyncio.wait_for(takeover.claim(stored), 5) is beside.running
    return beside.running.why


async def test_a_stream_that_was_to_be_cancelled_is_cancelled_with_its_takeover():
    assert isinstance(await taken_over(cancelled=True), Cancelled)
    assert await taken_over(cancelled=False) is None
