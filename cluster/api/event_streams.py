"""Streams of events in the front ends: closing, merging, and ending with their client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from cluster.api.requests import Event

_T = TypeVar("_T")
_QUEUE = 16  # events that a merged stream may be ahead of its reader


@asynccontextmanager
async def closing(events: AsyncIterator[_T]) -> AsyncIterator[AsyncIterator[_T]]:
    """Close `events` at the end of the block, which cancels a request that still runs."""
    try:
        yield events
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()


async def merge(streams: Sequence[AsyncIterator[Event]]) -> AsyncIterator[tuple[int, Event]]:
    """The events of all `streams` as they come, each with the index of its stream.

    The first error ends them all and is raised; closing the result closes them all.
    """
    if len(streams) == 1:
        async with closing(streams[0]) as events:
            async for event in events:
                yield 0, event
        return
    queue: asyncio.Queue[tuple[int, Event] | int | Exception] = asyncio.Queue(_QUEUE)
    tasks = [asyncio.create_task(_forward(i, one, queue)) for i, one in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if isinstance(item, int):
                running -= 1
            else:
                yield item
    finally:
        await end(tasks)


class StallWatch:
    """Raises TimeoutError out of its block once a single write takes longer than `stall_s`.

    One timer for the whole stream: a timeout around each write costs more than most writes.
    """

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._check()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    async def write(self, writing: Awaitable[None]) -> None:
        """Wait for a write. Its time counts against `stall_s`."""
        self._since = self._loop.time()
        await writing
        self._since = None

    def _check(self) -> None:
        now = self._loop.time()
        due = self._stall_s + (now if self._since is None else self._since)
        if now >= due:
            self._limit.reschedule(now)
        else:
            self._timer = self._loop.call_at(due, self._check)


async def unless(gone: Awaitable[Any], work: Coroutine[Any, Any, _T]) -> _T | None:
    """The result of `work`, or None where `gone` came first and `work` was cancelled."""
    watch = asyncio.ensure_future(gone)
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        await end([task, watch])


async def end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel the tasks that still run, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(
    index: int,
    stream: AsyncIterator[Event],
    queue: asyncio.Queue[tuple[int, Event] | int | Exception],
) -> None:
    """Put the events of one stream, then its index alone, or its error."""
    try:
        async with closing(stream) as events:
            async for event in events:
                await queue.put((index, event))
    except Exception as error:
        await queue.put(error)
    else:
        await queue.put(index)
