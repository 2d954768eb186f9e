"""Threads for calls that block: one waits inside Gloo where nothing can interrupt it."""

from __future__ import annotations

import asyncio
import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from kv_transfer.waits import quietly

T = TypeVar("T")
# A thread that comes back from C++ while the interpreter goes down ends the process by SIGABRT,
# so an exit waits this long for calls in progress. Longer ones are left to it.
_EXIT_S = 1.0


class Worker:
    """One daemon thread that runs calls in the order given.

    A call that never returns is abandoned together with the thread: the process can still exit,
    and what the call holds stays alive for as long as the thread does.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        # The thread must not hold the worker itself, only its queue.
        thread = threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        thread.start()
        _threads[thread] = self._jobs

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


_Jobs = queue.SimpleQueue[_Job | None]
_threads: weakref.WeakKeyDictionary[threading.Thread, _Jobs] = weakref.WeakKeyDictionary()


@atexit.register
def _finish_calls() -> None:
    deadline = time.monotonic() + _EXIT_S
    threads = [thread for thread in list(_threads) if thread.is_alive()]
    for thread in threads:
        _threads[thread].put(None)
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _work(jobs: _Jobs) -> None:
    # A second pool of OpenMP threads in the process would make the engine's own sleep between any
    # two operations instead of spinning: half as many tokens a second.
    torch.set_num_threads(1)
    while True:
        job = jobs.get()
        if job is None:
            return
        job.run()
        # Else the last job's lane and buffer would live until the next job comes.
        del job
