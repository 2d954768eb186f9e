"""The event buffer of a request: events that its client has not read yet are merged.

So a slow client gets fewer, larger events, and the buffer stays small. Of the Progress events of a
choice the last one counts.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from dataclasses import dataclass

from cluster.api import Event, Heartbeat, Progress, Started, Summary, Tokens
from engine.errors import TandemError
from engine.types.sequence import FinishReason, SampledToken

HEARTBEAT_S = 10.0
# Bound: the texts of so many events are kept apart. Each by itself takes ten times its length.
_TEXTS = 64


@dataclass(slots=True)
class _TokenRun:
    """The merged tokens of several events of one choice, in some ten bytes for each token."""

    choice: int
    index: int
    ids: array[int]
    texts: list[str]
    sampled: list[SampledToken]
    finish_reason: FinishReason | None

    def add(self, tokens: Tokens) -> None:
        self.ids.extend(tokens.ids)
        self.texts.append(tokens.text)
        if len(self.texts) > _TEXTS:
            self.texts = ["".join(self.texts)]
        self.sampled += tokens.sampled
        self.finish_reason = tokens.finish_reason

    @classmethod
    def of(cls, tokens: Tokens) -> _TokenRun:
        ids, sampled = array("q", tokens.ids), list(tokens.sampled)
        reason = tokens.finish_reason
        return cls(tokens.choice, tokens.index, ids, [tokens.text], sampled, reason)

    def whole(self) -> Tokens:
        text, sampled = "".join(self.texts), tuple(self.sampled)
        return Tokens(self.choice, self.index, tuple(self.ids), text, self.finish_reason, sampled)


class EventBuffer:
    """Takes events without waiting; a slow reader gets larger events.

        open ──put──▶ open ──put of a Summary or an error, end_with, close──▶ closed

    A closed buffer takes nothing more, so the first end counts, and stays until it is read. The
    size is bounded by the request's `max_tokens` for each choice. While it is open, it adds a
    Heartbeat after each `heartbeat_s` without an event that every front end writes to its client.
    """

    def __init__(self, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._events: deque[Event | _TokenRun | TandemError] = deque()
        self._at_end = False
        # The unread tokens of each choice; a single event becomes a run when another comes.
        self._runs: dict[int, Tokens | _TokenRun] = {}
        self._waiting: asyncio.Future[None] | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._heartbeat_s = heartbeat_s
        self._heard_s = self._loop.time()
        self._beating = self._loop.call_later(heartbeat_s, self._beat)

    @property
    def closed(self) -> bool:
        """Whether it takes no more events."""
        return self._closed

    @property
    def unread(self) -> int:
        """The number of unread events."""
        return len(self._events)

    def keep_text(self) -> None:
        """Keep tokens until the Summary from now on; each choice leaves in one event before it."""
        self._at_end = True

    def put(self, event: Event | TandemError) -> None:
        """Add an event and wake a waiting reader. Does nothing after the end."""
        if self._closed:
            return
        if isinstance(event, Tokens):
            self._put_tokens(event)
            if self._at_end:
                return
        elif isinstance(event, Progress):
            self._put_progress(event)
        else:
            if isinstance(event, Summary) and self._at_end:
                self._events.extend(self._runs.values())
            self._events.append(event)
        if isinstance(event, Summary | TandemError):
            self.close()
        if _is_written(event):
            self._heard_s = self._loop.time()
        self._wake()

    def end_with(self, error: TandemError) -> None:
        """Drop the events that were not read, and end with this error. The first end counts."""
        if self._closed:
            return
        self._events.clear()
        self._runs.clear()
        self.put(error)

    def close(self) -> None:
        """Take no more events. Idempotent."""
        self._closed = True
        self._beating.cancel()

    async def get(self) -> Event | TandemError:
        """Wait for the next event and return it."""
        while not self._events:
            self._waiting = self._loop.create_future()
            await self._waiting
        event = self._events.popleft()
        if isinstance(event, _TokenRun):
            event = event.whole()
        if isinstance(event, Tokens):
            del self._runs[event.choice]
        return event

    def _put_tokens(self, tokens: Tokens) -> None:
        run = self._runs.get(tokens.choice)
        if run is None:
            self._runs[tokens.choice] = tokens
            if not self._at_end:
                self._events.append(tokens)
            return
        if isinstance(run, Tokens):
            single, run = run, _TokenRun.of(run)
            self._runs[tokens.choice] = run
            if not self._at_end:
                self._events[self._events.index(single)] = run
        run.add(tokens)

    def _put_progress(self, progress: Progress) -> None:
        for index, event in enumerate(self._events):
            if isinstance(event, Progress) and event.choice == progress.choice:
                self._events[index] = progress
                return
        self._events.append(progress)

    def _beat(self) -> None:
        due = self._heard_s + self._heartbeat_s
        if self._loop.time() >= due:
            # A reader that has not read the buffered events needs no Heartbeat.
            if not self._events:
                self.put(Heartbeat())
            due = self._loop.time() + self._heartbeat_s
        self._beating = self._loop.call_at(due, self._beat)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def _is_written(event: Event | TandemError) -> bool:
    """Whether every front end writes bytes for it: over HTTP some events are no chunk."""
    if isinstance(event, Tokens):
        return bool(event.text or event.sampled or event.finish_reason)
    return not isinstance(event, Started)
