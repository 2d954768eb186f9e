"""An event loop in a thread, which computes coroutines for threads without a loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from tandem_client.errors import Cancelled

_T = TypeVar("_T")
_CLOSED = "the client is closed"
# Bound: the time that cancelled work and the thread get to end.
_END_S = 5.0


class LoopThread:
    """The thread ends with `close`, with this object, or with the program."""

    def __init__(self) -> None:
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        # A daemon: the program may end without `close`.
        thread = threading.Thread(
            target=lambda: asyncio.run(_until_stopped(started)), name="tandem-client", daemon=True
        )
        thread.start()
        self._loop, stop = started.result()
        self._running: set[Future[Any]] = set()
        self._end = weakref.finalize(self, _stop, self._loop, stop, thread, self._running)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The result of `work`. An exception in this thread, as Ctrl-C is, cancels the work.

        Raises Cancelled where the end comes meanwhile, and RuntimeError after it.
        """
        if not self._end.alive:
            work.close()
            raise RuntimeError(_CLOSED)
        tasks: list[asyncio.Task[_T]] = []
        done: Future[_T] = Future()
        self._running.add(done)

        def start() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(partial(_pass_on, done))

        self._loop.call_soon_threadsafe(start)
        try:
            return done.result()
        finally:
            if not done.done():
                self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
                wait([done], _END_S)
            self._running.discard(done)

    @property
    def ended(self) -> bool:
        """Whether the thread was told to end."""
        return not self._end.alive

    def close(self) -> None:
        """End the thread, and cancel what still runs. Idempotent."""
        self._end()


async def _until_stopped(
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]],
) -> None:
    stop = asyncio.Event()
    started.set_result((asyncio.get_running_loop(), stop))
    await stop.wait()


def _stop(
    loop: asyncio.AbstractEventLoop,
    stop: asyncio.Event,
    thread: threading.Thread,
    running: set[Future[Any]],
) -> None:
    loop.call_soon_threadsafe(stop.set)
    if thread is not threading.current_thread():
        thread.join(_END_S)
    # What was to start after the loop had ended.
    for done in tuple(running):
        with suppress(InvalidStateError):
            done.set_exception(Cancelled(_CLOSED))


def _pass_on(done: Future[Any], task: asyncio.Task[Any]) -> None:
    if task.cancelled():
        done.set_exception(Cancelled(_CLOSED))
    elif error := task.exception():
        done.set_exception(error)
    else:
        done.set_result(task.result())
