"""Writes a response as server-sent events with sequence numbers.

In the background a sequence number counts the characters of all deltas up to its event, and one
for each other event. So a number names a place in the answer, on every router, although the text
comes in other pieces. A delta that a client has in part is cut. Other streams count events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

from cluster.api import Event, Started, Summary, Tokens
from cluster.api.event_streams import closing
from cluster.api.off_loop import write_event
from cluster.gateway.answers.comments import SilenceFiller, comment_of
from cluster.gateway.responses.answer import ResponseAnswer
from cluster.gateway.responses.field_names import response_fields
from cluster.gateway.responses.output import OutputEvent
from cluster.gateway.sse import HEARTBEAT, dump, dump_large
from engine.errors import TandemError

Dump = Callable[[Mapping[str, Any]], bytes]


class ResponseEvents:
    """The events of one response behind the sequence number `after`."""

    def __init__(self, answer: ResponseAnswer, after: int = -1) -> None:
        self._answer = answer
        self._after = after
        self._number = -1

    async def events(self, events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
        """Server-sent events; raises a TandemError before the first one."""
        silence, wrote = SilenceFiller(), False
        try:
            with response_fields():
                async with closing(events) as found:
                    async for event in found:
                        written = silence.filled(event, await self._write(event))
                        if written:
                            wrote = True
                            yield written
                self._answer.check()
        except TandemError as error:
            if not (wrote or self._answer.begun):
                raise
            yield self._lines(dump, self._answer.failed(error)) or HEARTBEAT

    async def _write(self, event: Event) -> bytes:
        last = isinstance(event, Summary) or (isinstance(event, Tokens) and event.finish_reason)
        if last and self._answer.is_large:
            return await asyncio.to_thread(self._written, dump_large, event)
        return comment_of(event) or await write_event(event, partial(self._written, dump))

    def _written(self, write: Dump, event: Event) -> bytes:
        lines = self._lines(write, self._answer.take(event))
        # A stream begins at once, even where its client has every event.
        return lines or (HEARTBEAT if isinstance(event, Started) else b"")

    def _lines(self, write: Dump, events: list[OutputEvent]) -> bytes:
        return b"".join(self._line(write, kind, fields) for kind, fields in events)

    def _line(self, write: Dump, kind: str, fields: dict[str, Any]) -> bytes:
        delta = fields.get("delta") if self._answer.in_background else None
        before = self._number
        self._number += 1 if delta is None else len(delta)
        if self._number <= self._after:
            return b""
        if delta is not None and before < self._after:
            fields["delta"] = delta[self._after - before :]
        document = {"type": kind, "sequence_number": self._number, **fields}
        return b"event: " + kind.encode() + b"\ndata: " + write(document) + b"\n\n"
