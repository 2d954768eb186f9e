"""A resumable stream in the router that owns it: each event is handed on once Redis has it.

    put ──▶ held ──▶ gathered into entries, sent ──▶ acknowledged: handed on
             └── suspended: recorded and handed on at once; written when Redis is back

The stream keeps all of its entries until its end, because a Redis that was started anew is empty.
No I/O is here. `cluster/journal/writer.py` sends what is gathered.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from cluster.api import Event, Resumability, Started, Summary, Tokens
from cluster.journal.batches import CHECK, CREATE, ENDED, Appended, NewStream, framed, part
from cluster.journal.entries import (
    JOURNALED,
    FirstTokenStages,
    Journaled,
    entry_bytes,
    merged,
)
from cluster.journal.records import EntrySeal
from engine.errors import TandemError

# Bound: entries of a backlog that are written while new events wait for them.
_FEW_ENTRIES = 256

OnEvent = Callable[[Event | TandemError], None]


class JournaledStream:
    """The events of one stream, in order, and its entries. `JournalWriter` makes it.

    `wake` is called when there is something to write; with True it is urgent.
    """

    __slots__ = (
        "_created",
        "_entries",
        "_firsts",
        "_flying",
        "_forgotten",
        "_held",
        "_name",
        "_new",
        "_on_event",
        "_on_lost",
        "_seal",
        "_sent",
        "_told",
        "_wake",
        "_watchers",
        "_written",
        "cancelled",
        "checked",
        "closed",
        "fence",
        "lost",
        "ready",
        "stream_id",
        "suspended",
    )

    def __init__(
        self,
        stream_id: str,
        fence: int,
        seal: EntrySeal,
        new: NewStream,
        on_event: OnEvent,
        on_lost: Callable[[], None],
        wake: Callable[[JournaledStream, bool], None],
        entries: Sequence[bytes] | None = None,
    ) -> None:
        self.stream_id = stream_id
        self.fence = fence
        self._name = stream_id.encode()
        self.suspended = self.closed = self.lost = False
        # For the writer: it is in a queue there, and was told to be cancelled. And Redis has
        # checked that the stream is this router's, and nothing changed since.
        self.ready = self.cancelled = self.checked = False
        self._seal = seal
        self._new = new
        self._on_event = on_event
        self._on_lost = on_lost
        self._wake = wake
        # A stream with entries was taken over.
        self._created = entries is not None
        # Framed, as a batch has them.
        self._entries = [framed(entry) for entry in entries or ()]
        self._sent = self._written = len(self._entries)
        self._held: list[Event | TandemError] = []
        # Events on their way to Redis, each with the number of entries that must be there first.
        self._flying: deque[tuple[int, Event | TandemError]] = deque()
        self._firsts: dict[int, FirstTokenStages] = {}
        self._told = self._forgotten = False
        self._watchers: set[asyncio.Event] = set()

    @property
    def pending(self) -> bool:
        """Whether something is left to write."""
        if self.lost or self._forgotten:
            return False
        return bool(self._held) or self._written < len(self._entries) or not self._created

    @property
    def over(self) -> bool:
        """Whether nothing is left to write: the stream has ended, was lost, or was removed."""
        return self.lost or self._forgotten or (self.closed and not self.pending)

    def begin(self) -> None:
        """Have the request written, if no token was put yet."""
        if not self._created and self.pending:
            self._wake(self, False)

    def put(self, event: Event | TandemError, first: FirstTokenStages | None = None) -> None:
        """Add an event; it is handed on once Redis has it. A Summary or an error is the last.

        `first` goes with the first tokens of a choice. Does nothing after the end, or once the
        stream was lost.
        """
        if self.closed or self.lost:
            return
        if isinstance(event, Tokens):
            if first is not None:
                self._firsts[event.choice] = first
            urgent = event.index == 0
        else:
            urgent = False
            self.closed = isinstance(event, Summary | TandemError)
            if not (self.closed or self._held or self._flying) and self._created:
                self._on_event(event)
                return
        if self.suspended:
            self._pass_on(event)
            self._tell()
            return
        self._held.append(event)
        # Until `begin` Started waits for the first token, so that one call writes both.
        if urgent or not (self.ready or isinstance(event, Started)):
            self._wake(self, urgent)

    def watch(self, woken: asyncio.Event) -> Callable[[], None]:
        """Set the event after each entry that was written; returns what ends that."""
        self._watchers.add(woken)
        return lambda: self._watchers.discard(woken)

    def gather(self, most_bytes: int) -> bytes:
        """What is to be written now, as a part of a batch, of about `most_bytes` at most."""
        if self._held:
            held, self._held = self._held, []
            for event in merged(held) if len(held) > 1 else held:
                if isinstance(event, JOURNALED):
                    self._record(event)
                self._flying.append((len(self._entries), event))
        begin, end, size = self._written, self._written, 0
        every = len(self._entries)
        while end < every and (size < most_bytes or end == begin):
            size += len(self._entries[end])
            end += 1
        self._sent = end
        flags, new = 0 if self.checked else CHECK, None
        if not self._created:
            flags, new = flags | CREATE, self._new
        if self.closed and end == every:
            flags |= ENDED
        return part(self._name, self.fence, flags, new, begin + 1, self._entries[begin:end])

    def answered(self, answer: Appended) -> None:
        """Act on the answer to the gathered part: hand on, or be lost."""
        if answer is Appended.WRITTEN or answer is Appended.CANCELLED:
            self._acknowledged()
        elif answer is Appended.FENCED:
            self.lost = True
            self.drop()
            self._on_lost()
        elif answer is Appended.GONE:
            self.suspend()
            self._forgotten = True
            self.drop()
        else:
            self.restart()
        for woken in self._watchers:
            woken.set()

    def suspend(self) -> None:
        """Redis is away: hand on what is held, and from now on everything at once."""
        if self.suspended or self.lost:
            return
        began = self._created or bool(self._flying or self._held or self._entries)
        self.suspended, self._told = True, False
        for _, event in self._flying:
            self._on_event(event)
        self._flying.clear()
        held, self._held = self._held, []
        for event in held:
            self._pass_on(event)
        if began:
            self._tell()

    def restart(self) -> None:
        """Redis has lost data: the stream is to be written anew."""
        if not self.lost and not self._forgotten:
            self._created, self._written = False, 0

    def drop(self) -> None:
        """Free the memory of a stream that is over."""
        self._held.clear()
        self._flying.clear()
        self._entries.clear()
        self._written = 0

    def _acknowledged(self) -> None:
        self._created = self.checked = True
        self._written = self._sent
        # The rest of a short backlog goes with the next entries, and later events wait for it.
        if self.suspended and len(self._entries) - self._written <= _FEW_ENTRIES:
            self.suspended = False
            if self._told and not self.closed:
                self._flying.append((len(self._entries), Resumability(suspended=False)))
        flying, written = self._flying, self._written
        while flying and flying[0][0] <= written:
            self._on_event(flying.popleft()[1])

    def _pass_on(self, event: Event | TandemError) -> None:
        if isinstance(event, JOURNALED) and not self._forgotten:
            self._record(event)
        self._on_event(event)

    def _record(self, event: Journaled) -> None:
        first = None
        if self._firsts and isinstance(event, Tokens):
            first = self._firsts.pop(event.choice, None)
        payload = entry_bytes(event, first, time.time() - self._new.arrived_at)
        self._entries.append(self._seal.framed(len(self._entries) + 1, self.fence, payload))

    def _tell(self) -> None:
        if not self._told and not self.closed:
            self._told = True
            self._on_event(Resumability(suspended=True))
