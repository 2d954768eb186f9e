"""Threads for blocking calls, which nothing may be able to interrupt."""

from __future__ import annotations

import asyncio
import atexit
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import torch

from kv_transfer.aio.waits import fail, quietly, succeed

T = TypeVar("T")
# Bound: how long the process's exit waits for calls in progress. A thread that returns from C++
# while the interpreter shuts down would end the process by SIGABRT.
_EXIT_S = 1.0


class WorkerThread:
    """One daemon thread that runs calls in the given order.

    Calls in two halves overlap: the first half of the next call runs before the second half of the
    last. A call that never returns is abandoned with its thread. The process can still exit, and
    the call's objects live as long as the thread.
    """

    def __init__(self, name: str) -> None:
        self._jobs: _Jobs = queue.SimpleQueue()
        # The thread refers to the queue only, so that the worker can be freed.
        arguments = (self._jobs, _ResultQueue())
        thread = threading.Thread(target=_work, args=arguments, name=name, daemon=True)
        thread.start()
        _threads[thread] = self._jobs

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Queue the call; the future gets its result or exception, on this event loop.

        Use `waits` to wait: a cancel of a direct await would hide when the call ends.
        """
        job = _Job(call)
        self._jobs.put(job)
        return job.future

    def begin(
        self,
        begin: Callable[[], Callable[[], T]],
        then: Callable[[T | None, Exception | None], None],
        ahead: int,
        *,
        urgent: bool = False,
    ) -> None:
        """Queue a call in two halves: the first half returns the second.

        The thread begins up to `ahead` calls before it ends the first of them. `then` gets the
        result or the error, on this event loop. It is called at once for an error or an urgent
        call, or if the thread has nothing to do, and else together with later calls.
        """
        self._jobs.put(_Halves(begin, then, ahead, urgent))

    def stop(self) -> None:
        """End the thread after the calls already queued."""
        self._jobs.put(None)


class _Job:
    """A call, and the future of its result."""

    __slots__ = ("_call", "_loop", "future")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = quietly(self._loop.create_future())

    def run(self) -> None:
        """Run the call, on the thread."""
        result, error = _outcome(self._call)
        # RuntimeError: the event loop is closed, and no task waits any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._finish, result, error)

    def _finish(self, result: Any, error: Exception | None) -> None:
        if error is not None:
            fail(self.future, error)
        else:
            succeed(self.future, result)


class _Halves:
    """A call in two halves, and the callback of its end."""

    __slots__ = ("_call", "_then", "ahead", "urgent")

    def __init__(
        self, call: Callable[[], Any], then: Callable[[Any, Any], None], ahead: int, urgent: bool
    ) -> None:
        self._call = call
        self._then = then
        self.ahead = ahead
        self.urgent = urgent

    def begin(self, results: _ResultQueue) -> bool:
        """Run the first half; False if it failed, and there is no second."""
        self._call, error = _outcome(self._call)
        if error is not None:
            results.add(self._then, None, error, flush=True)
        return error is None

    def end(self, results: _ResultQueue) -> None:
        """Run the second half."""
        result, error = _outcome(self._call)
        results.add(self._then, result, error, flush=self.urgent or error is not None)


class _ResultQueue:
    """Results on their way from a worker's thread to the event loop, several at a time.

    Waking the event loop costs time, because it takes the interpreter's lock from the thread.
    """

    # Tuned: results for which the event loop is woken once.
    _BATCH = 4

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: list[Callable[[], None]] = []

    def add(
        self, then: Callable[[Any, Any], None], result: Any, error: Exception | None, *, flush: bool
    ) -> None:
        """Add a result; `flush` now, or let it wait for more results."""
        self._ended.append(partial(then, result, error))
        if flush or len(self._ended) >= self._BATCH:
            self.flush()

    def flush(self) -> None:
        """Send all results to the event loop."""
        if not self._ended:
            return
        ended, self._ended = self._ended, []
        # RuntimeError: the event loop is closed, and no task waits any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_call_each, ended)


def _call_each(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _outcome(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as raised:  # the edge of the thread: the event loop raises it
        return None, raised


_Jobs = queue.SimpleQueue[_Job | _Halves | None]
_threads: weakref.WeakKeyDictionary[threading.Thread, _Jobs] = weakref.WeakKeyDictionary()


@atexit.register
def _finish_calls() -> None:
    deadline = time.monotonic() + _EXIT_S
    threads = [thread for thread in list(_threads) if thread.is_alive()]
    for thread in threads:
        _threads[thread].put(None)
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _work(jobs: _Jobs, results: _ResultQueue) -> None:
    # With a second pool of OpenMP threads in the process, the engine's pool would sleep between two
    # operations instead of spinning.
    torch.set_num_threads(1)
    begun: deque[_Halves] = deque()
    while True:
        if not begun and jobs.empty():
            results.flush()
        try:
            job = jobs.get(block=not begun)
        except queue.Empty:
            begun.popleft().end(results)
            continue
        if isinstance(job, _Halves):
            if len(begun) >= job.ahead:
                begun.popleft().end(results)
            if job.begin(results):
                begun.append(job)
        else:
            while begun:
                begun.popleft().end(results)
            if job is None:
                results.flush()
                return
            job.run()
        # Otherwise the last job's channel and buffer would live until the next job.
        del job
