"""The feed of the console: one event stream of changes, made once for all who look.

Nothing is made while nobody looks. A page that reads too slowly is dropped with a reason, and gets
the whole state when it comes back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from cluster.api.event_streams import end
from cluster.console.model import ConsoleModel
from cluster.console.source import Json
from cluster.gateway.sse import dump
from engine.errors import Internal, Overloaded, TandemError, Unavailable

log = logging.getLogger(__name__)

# Promise: the time between two events.
TICK_S = 0.5
# Bounds: pages that look at one router, and events that a page may be behind. So a connection that
# takes nothing for 4 s, once its buffers are full, loses its place.
MOST_VIEWERS = 16
_MOST_BEHIND = 8
# Ticks between two explanations, questions to the directory, and checks of keys.
_SELDOM = 10
# Bounds: one question to the directory, and one wait of a page for its next event.
_CLUSTER_S = 1.0
_NEXT_S = 15.0
_RETRY_S = 5.0


class _Viewer:
    """One page that looks. `allowed` raises a TandemError once its key opens nothing more."""

    def __init__(self, allowed: Callable[[], None]) -> None:
        self.allowed = allowed
        self.began = False
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_BEHIND + 2)

    @property
    def is_slow(self) -> bool:
        """Whether too many events wait."""
        return self.events.qsize() >= _MOST_BEHIND

    def drop(self, reason: str) -> None:
        """End the stream with the reason, and drop what waits."""
        with suppress(asyncio.QueueEmpty):
            while True:
                self.events.get_nowait()
        self.events.put_nowait(_event("ended", {"reason": reason}))
        self.events.put_nowait(None)


class ConsoleFeed:
    """Streams the model's changes; its task runs while pages look."""

    def __init__(self, model: ConsoleModel, tick_s: float = TICK_S) -> None:
        self._model = model
        self._tick_s = tick_s
        self._viewers: list[_Viewer] = []
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def viewers(self) -> int:
        """The pages that look now."""
        return len(self._viewers)

    async def watch(self, allowed: Callable[[], None]) -> AsyncIterator[bytes]:
        """The events for one page; raises Overloaded or Unavailable before the first one."""
        viewer = self._join(allowed)
        try:
            while True:
                async with asyncio.timeout(_NEXT_S):
                    event = await viewer.events.get()
                if event is None:
                    return
                yield event
        except TimeoutError:
            raise Internal("the console's feed stands still") from None
        finally:
            if viewer in self._viewers:
                self._viewers.remove(viewer)

    async def close(self) -> None:
        """End the streams, because the router ends. Idempotent."""
        self._closed = True
        self._drop_all("the router ends")
        if self._task is not None:
            await end([self._task])

    def _join(self, allowed: Callable[[], None]) -> _Viewer:
        if self._closed:
            raise Unavailable("the router ends", retry_after_s=1.0)
        if len(self._viewers) >= MOST_VIEWERS:
            message = (
                f"{MOST_VIEWERS} pages look at this router, the most there may; "
                "a page that reads nothing loses its place within seconds"
            )
            raise Overloaded(message, retry_after_s=_RETRY_S)
        viewer = _Viewer(allowed)
        self._viewers.append(viewer)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="feed of the console")
        return viewer

    async def _run(self) -> None:
        """Make events while anybody looks."""
        try:
            await self._model.catch_up()
            ticks = 0
            while self._viewers:
                if ticks % _SELDOM == 0:
                    await self._seldom()
                self._send()
                ticks += 1
                await asyncio.sleep(self._tick_s)
        except Exception:
            log.exception("the feed of the console ended in a fault")
            self._drop_all("the feed ended in a fault; the log of the router has it")

    async def _seldom(self) -> None:
        await asyncio.to_thread(self._model.explain)
        try:
            async with asyncio.timeout(_CLUSTER_S):
                await self._model.ask_cluster()
        except (TimeoutError, Unavailable):
            log.debug("the directory did not tell the console of the cluster")
        for viewer in list(self._viewers):
            try:
                viewer.allowed()
            except TandemError as error:
                self._drop(viewer, error.message)

    def _send(self) -> None:
        changes = _event("changes", self._model.changes())
        whole: bytes | None = None
        for viewer in list(self._viewers):
            if viewer.is_slow:
                log.info("a page of the console was too slow and was dropped")
                self._drop(viewer, "this page was too slow; it gets the whole state again")
            elif viewer.began:
                viewer.events.put_nowait(changes)
            else:
                if whole is None:
                    whole = _event("whole", self._model.whole())
                viewer.began = True
                viewer.events.put_nowait(whole)

    def _drop(self, viewer: _Viewer, reason: str) -> None:
        """End its stream, and free its place at once: its connection may take no end."""
        if viewer in self._viewers:
            self._viewers.remove(viewer)
            viewer.drop(reason)

    def _drop_all(self, reason: str) -> None:
        for viewer in list(self._viewers):
            self._drop(viewer, reason)


def _event(name: str, document: Json) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + dump(document) + b"\n\n"
