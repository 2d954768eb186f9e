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
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from kv_transfer.errors import LinkBroken
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
        self._stopping = threading.Lock()
        self._last: asyncio.Future[None] | None = None
        # The thread must not hold the worker itself, only its queue.
        thread = threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        thread.start()
        _threads[thread] = self._jobs

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Queue the call; its result or exception arrives in the future on this event loop.

        Do not await the future directly: a cancel would hide when the call ends. Use `waits`.
        """
        return self._put(_Job(call))

    def begin(self, halves: Halves[T]) -> asyncio.Future[T]:
        """Queue a call in two halves, and what is made of its result. As `submit`."""
        return self._put(_Job(halves.begin, halves))

    def drained(self) -> asyncio.Future[None]:
        """Done when every call that is queued by now has ended."""
        return self._last or self.submit(_nothing)

    def stop(self) -> None:
        """End the thread after the calls already queued; those that come later fail."""
        if self._last is None:
            last = self.submit(_nothing)
            with self._stopping:
                self._last = last
                self._jobs.put(None)

    def _put(self, job: _Job) -> asyncio.Future[Any]:
        """From any thread."""
        with self._stopping:
            stopped = self._last is not None
            if not stopped:
                self._jobs.put(job)
        if stopped:
            job.hand_over(None, LinkBroken("the thread has ended"))
        return job.future


@dataclass(frozen=True, slots=True)
class Halves(Generic[T]):
    """`begin` returns the second half, and `then` is given its result: here, or on that worker.

    `ahead` such calls are begun before the first of them is ended.
    """

    begin: Callable[[], Callable[[], Any]]
    then: Callable[[Any], T]
    worker: Worker | None = None
    ahead: int = 1


def _nothing() -> None:
    pass


class _Job:
    __slots__ = ("_call", "_loop", "future", "halves")

    def __init__(self, call: Callable[[], Any], halves: Halves[Any] | None = None) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self.halves = halves
        self.future: asyncio.Future[Any] = quietly(self._loop.create_future())

    def begin(self) -> bool:
        """Run the first half; False if that failed and there is no second."""
        try:
            self._call = self._call()
        except Exception as raised:  # the edge of the thread: handed to whoever waits
            self.hand_over(None, raised)
            return False
        return True

    def end(self) -> None:
        """Run the call, or its second half and then what follows."""
        halves, self.halves = self.halves, None
        try:
            result = self._call()
            if halves is not None and halves.worker is not None:
                self._call = partial(halves.then, result)
                halves.worker._put(self)
                return
            if halves is not None:
                result = halves.then(result)
        except Exception as raised:  # as above
            self.hand_over(None, raised)
        else:
            self.hand_over(result, None)

    def hand_over(self, result: Any, error: Exception | None) -> None:
        """From any thread."""
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
        if job is not None and job.halves is not None:
            if len(begun) >= job.halves.ahead:
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
