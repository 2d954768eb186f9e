"""Threads for calls that block: one waits inside Gloo where nothing can interrupt it."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from kv_transfer.waits import quietly

T = TypeVar("T")


class Worker:
    """One daemon thread that runs calls in the order given.

    A call that never returns is abandoned together with the thread: the process can still exit,
    and what the call holds stays alive for as long as the thread does.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        # The thread must not hold the worker itself, only its queue.
        threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True).start()

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Queue the call; its result or exception arrives in the future on this event loop.

        Do not await the future directly: a cancel would hide when the call ends. Use `waits`.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = quietly(loop.create_future())
        self._jobs.put(_Job(call, loop, future))
        return future

    def stop(self) -> None:
        """End the thread after the calls already queued."""
        self._jobs.put(None)


class _Job:
    __slots__ = ("call", "future", "loop")

    def __init__(
        self,
        call: Callable[[], Any],
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[Any],
    ) -> None:
        self.call = call
        self.loop = loop
        self.future = future

    def run(self) -> None:
        try:
            result, error = self.call(), None
        except Exception as raised:  # the edge of the thread: handed to whoever waits
            result, error = None, raised
        try:
            self.loop.call_soon_threadsafe(self._finish, result, error)
        except RuntimeError:
            return  # the event loop is gone, and everyone who waited with it

    def _finish(self, result: Any, error: Exception | None) -> None:
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


def _work(jobs: queue.SimpleQueue[_Job | None]) -> None:
    while True:
        job = jobs.get()
        if job is None:
            return
        job.run()
        # Else the last job's lane and buffer would live until the next job comes.
        del job
