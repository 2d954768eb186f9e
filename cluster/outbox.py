"""A request's events on their way to its client: what is not read yet is merged, never piled up."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from cluster.api import Event, Tokens
from engine.errors import TandemError
from engine.sequence import FinishReason, SampledToken


@dataclass(slots=True)
class _Run:
    """Tokens of one choice that several events brought."""

    choice: int
    index: int
    ids: list[int]
    texts: list[str]
    sampled: list[SampledToken]
    finish_reason: FinishReason | None

    def add(self, tokens: Tokens) -> None:
        self.ids += tokens.ids
        self.texts.append(tokens.text)
        self.sampled += tokens.sampled
        self.finish_reason = tokens.finish_reason

    def whole(self) -> Tokens:
        text, sampled = "".join(self.texts), tuple(self.sampled)
        return Tokens(self.choice, self.index, tuple(self.ids), text, self.finish_reason, sampled)


class Outbox:
    """Takes events without waiting; a slow reader gets larger ones. Ends with `end_with`.

    What it holds is bounded by the request's `max_tokens` for each choice.
    """

    def __init__(self) -> None:
        self._events: deque[Event | _Run | TandemError] = deque()
        # Where each choice's unread tokens are; a lone event becomes a run when another comes.
        self._runs: dict[int, Tokens | _Run] = {}
        self._waiting: asyncio.Future[None] | None = None
        self._closed = False

    def put(self, event: Event | TandemError) -> None:
        """Add an event; nothing happens after the end."""
        if self._closed:
            return
        if not isinstance(event, Tokens):
            self._events.append(event)
        elif event.choice in self._runs:
            self._merge(event)
        else:
            self._runs[event.choice] = event
            self._events.append(event)
        self._wake()

    def end_with(self, error: TandemError) -> None:
        """Drop what was not read, for this; take nothing more."""
        self._events.clear()
        self._runs.clear()
        self.put(error)
        self._closed = True

    async def get(self) -> Event | TandemError:
        """The next event, waiting for one."""
        while not self._events:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        event = self._events.popleft()
        if isinstance(event, _Run):
            event = event.whole()
        if isinstance(event, Tokens):
            del self._runs[event.choice]
        return event

    def _merge(self, tokens: Tokens) -> None:
        run = self._runs[tokens.choice]
        if isinstance(run, Tokens):
            ids, sampled = list(run.ids), list(run.sampled)
            lone, run = run, _Run(run.choice, run.index, ids, [run.text], sampled, None)
            self._events[self._events.index(lone)] = run
            self._runs[tokens.choice] = run
        run.add(tokens)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
