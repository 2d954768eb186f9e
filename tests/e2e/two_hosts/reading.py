"""A stream that is read in the background, and when its tokens came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import pairwise

from cluster.api import Event, Started, Tokens
from tandem_client import Client
from tests.e2e.crowd import OPTIONS
from tests.exactness import Case


class Reading:
    """`events` of a stream, of which `ids` are known; it ends with the task."""

    def __init__(self, events: AsyncIterator[Event], ids: tuple[int, ...] = ()) -> None:
        self.ids, self.arrivals_s, self.stream_id = [*ids], list[float](), ""
        self.task = asyncio.create_task(self._read(events))

    @classmethod
    def of(cls, client: Client, case: Case, *, resumable: bool) -> Reading:
        """The answer to a case."""
        options = {name: getattr(case.sampling, name) for name in OPTIONS}
        prompt = list(case.prompt)
        return cls(client.generate(prompt, resumable=resumable, timeout_s=120, **options))

    async def _read(self, events: AsyncIterator[Event]) -> None:
        async for event in events:
            if isinstance(event, Started):
                self.stream_id = event.stream_id
            elif isinstance(event, Tokens):
                assert event.index == len(self.ids)
                self.ids += event.ids
                self.arrivals_s.append(time.monotonic())

    def pause_s(self, since_s: float) -> float:
        """The longest gap that ended since then."""
        gaps = [end - begin for begin, end in pairwise(self.arrivals_s) if end > since_s]
        return max(gaps, default=0.0)
