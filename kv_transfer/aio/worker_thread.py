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
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import torch

from kv_transfer.aio.waits import fail, quietly, succeed

T = TypeVar("T")
# A thread that comes back from C++ while the interpreter goes down ends the process by SIGABRT,
# so an exit waits this long for calls in progress. Longer ones are left to it.
_EXIT_S = 1.0


class WorkerThread:
    """One daemon thread that runs calls in the order given.

    Calls in two halves overlap: the first half of the next is run before the second half of the
    last is waited for. A call that never returns is abandoned together with the thread: the process
    can still exit, and what the call holds stays alive for as long as the thread does.
    """

    def __init__(self, name: str) -> None:
        self._jobs: _Jobs = queue.SimpleQueue()
        # The thread must not hold the worker itself, only its queue.
        arguments = (self._jobs, _ResultQueue())
        thread = threading.Thread(target=_work, args=arguments, name=name, daemon=True)
        thread.start()
        _threads[thread] = self._jobs

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Queue the call; its result or exception arrives in the future on this event loop.

        Do not await the future directly: a cancel would hide when the call ends. Use `waits`.
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
        """Queue a call in two halves: the second is what the first returns.

        `ahead` of them are begun before the first is ended. `then` is called on this event loop
        with the result or what was raised: at once when that is an error or the call is urgent, or
        when nothing else is to be done; else with those of some calls more.
        """
        self._jobs.put(_Halves(begin, then, ahead, urgent))

    def stop(self) -> None:
        """End the thread after the calls already queued."""
        self._jobs.put(None)


class _Job:
    """A call, and the future that has its end."""

    __slots__ = ("_call", "_loop", "future")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = quietly(self._loop.create_future())

    def run(self) -> None:
        """On the thread."""
        result, error = _outcome(self._call)
        # The event loop may be gone, and everyone who waited with it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._finish, result, error)

    def _finish(self, result: Any, error: Exception | None) -> None:
        if error is not None:
            fail(self.future, error)
        else:
            succeed(self.future, result)


class _Halves:
    """A call in two halves, and who hears of its end."""

    __slots__ = ("_call", "_then", "ahead", "urgent")

    def __init__(
        self, call: Callable[[], Any], then: Callable[[Any, Any], None], ahead: int, urgent: bool
    ) -> None:
        self._call = call
        self._then = then
        self.ahead = ahead
        self.urgent = urgent

    def begin(self, outbox: _ResultQueue) -> bool:
        """Run the first half; False if that failed and there is no second."""
        self._call, error = _outcome(self._call)
        if error is not None:
            outbox.add(self._then, None, error, tell=True)
        return error is None

    def end(self, outbox: _ResultQueue) -> None:
        """Run the second half."""
        result, error = _outcome(self._call)
        outbox.add(self._then, result, error, tell=self.urgent or error is not None)


class _ResultQueue:
    """Results on their way from a worker's thread to the event loop, some at a time.

    Each time the event loop is woken it takes the interpreter's lock from the thread.
    """

    _TOGETHER = 4

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: list[Callable[[], None]] = []

    def add(
        self, then: Callable[[Any, Any], None], result: Any, error: Exception | None, *, tell: bool
    ) -> None:
        """One more; told now, or later."""
        self._ended.append(partial(then, result, error))
        if tell or len(self._ended) >= self._TOGETHER:
            self.tell()

    def tell(self) -> None:
        """Have all of them heard."""
        if not self._ended:
            return
        ended, self._ended = self._ended, []
        # An event loop that is gone took those who waited with it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_call_each, ended)


def _call_each(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _outcome(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as raised:  # the edge of the thread: handed to whoever waits
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


def _work(jobs: _Jobs, outbox: _ResultQueue) -> None:
    # A second pool of OpenMP threads in the process would make the engine's own sleep between any
    # two operations instead of spinning: half as many tokens a second.
    torch.set_num_threads(1)
    begun: deque[_Halves] = deque()
    while True:
        if not begun and jobs.empty():
            outbox.tell()
        try:
            job = jobs.get(block=not begun)
        except queue.Empty:
            begun.popleft().end(outbox)
            continue
        if isinstance(job, _Halves):
            if len(begun) >= job.ahead:
                begun.popleft().end(outbox)
            if job.begin(outbox):
                begun.append(job)
        else:
            while begun:
                begun.popleft().end(outbox)
            if job is None:
                outbox.tell()
                return
            job.run()
        # Else the last job's channel and buffer would live until the next job comes.
        del job
