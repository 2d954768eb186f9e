"""Threads for calls that block: one waits inside Gloo where nothing can interrupt it."""

from __future__ import annotations

import asyncio
import atexit
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from kv_transfer.waits import fail, quietly, succeed

T = TypeVar("T")
# A thread that comes back from C++ while the interpreter goes down ends the process by SIGABRT,
# so an exit waits this long for calls in progress. Longer ones are left to it.
_EXIT_S = 1.0


class Worker:
    """One daemon thread that runs calls in the order given.

    Calls in two halves overlap: the first half of the next is run before the second half of the
    last is waited for. A call that never returns is abandoned together with the thread: the process
    can still exit, and what the call holds stays alive for as long as the thread does.
    """

    def __init__(self, name: str) -> None:
        self._jobs: _Jobs = queue.SimpleQueue()
        # The thread must not hold the worker itself, only its queue.
        thread = threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        thread.start()
        _threads[thread] = self._jobs

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Queue the call; its result or exception arrives in the future on this event loop.

        Do not await the future directly: a cancel would hide when the call ends. Use `waits`.
        """
        job = _Job(call)
        self._jobs.put(job)
        return job.future

    def begin(self, begin: Callable[[], Callable[[], T]], ahead: int) -> asyncio.Future[T]:
        """Queue a call in two halves: the second is what the first returns. As `submit`.

        `ahead` of them are begun before the first is ended.
        """
        job = _Job(begin, ahead)
        self._jobs.put(job)
        return job.future

    def stop(self) -> None:
        """End the thread after the calls already queued."""
        self._jobs.put(None)


class _Job:
    __slots__ = ("_call", "_loop", "ahead", "future")

    def __init__(self, call: Callable[[], Any], ahead: int | None = None) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        # None for a call that is not in halves.
        self.ahead = ahead
        self.future: asyncio.Future[Any] = quietly(self._loop.create_future())

    def begin(self) -> bool:
        """Run the first half; False if that failed and there is no second."""
        try:
            self._call = self._call()
        except Exception as raised:  # the edge of the thread: handed to whoever waits
            self._hand_over(None, raised)
            return False
        return True

    def end(self) -> None:
        """Run the call, or its second half."""
        try:
            result, error = self._call(), None
        except Exception as raised:  # as above
            result, error = None, raised
        self._hand_over(result, error)

    def _hand_over(self, result: Any, error: Exception | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._finish, result, error)
        except RuntimeError:
            return  # the event loop is gone, and everyone who waited with it

    def _finish(self, result: Any, error: Exception | None) -> None:
        if error is not None:
            fail(self.future, error)
        else:
            succeed(self.future, result)


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
    begun: deque[_Job] = deque()
    while True:
        try:
            job = jobs.get(block=not begun)
        except queue.Empty:
            begun.popleft().end()
            continue
        if job is not None and job.ahead is not None:
            if len(begun) >= job.ahead:
                begun.popleft().end()
            if job.begin():
                begun.append(job)
        else:
            while begun:
                begun.popleft().end()
            if job is None:
                return
            job.end()
        # Else the last job's lane and buffer would live until the next job comes.
        del job
