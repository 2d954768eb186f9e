"""Runs engine steps on a thread of their own, one at a time, so that the event loop never waits."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from engine.device import best_device
from engine.kv.block_pool import BlockPool
from engine.types.sequence import Outcome, Span
from engine.types.urgency import Urgency

T = TypeVar("T")

# An event loop takes little of a core, and somebody waits for it; an engine takes all there is.
_NICENESS = 5


class Slices(Protocol):
    """A pass that can be cut; see `engine.runtime.forward_pass.Pass`."""

    spans: list[Span]
    layers_done: int

    def advance(self, for_s: float | None = None) -> list[Outcome] | None:
        """Compute for about that long; None while there is more."""
        ...

    def cut(self) -> None:
        """Have what is computed now end at the next layer."""
        ...

    def halt(self) -> None:
        """End it for good, as soon as may be."""
        ...


class Steps(Protocol):
    """What computes spans: the engine, or a stand-in for it in tests."""

    def forward(self, spans: list[Span]) -> list[Outcome]:
        """Compute the spans; see `Engine.forward`."""
        ...

    def begin(self, spans: list[Span], stored: Callable[[], None] | None = None) -> Slices:
        """Compute the spans in slices; see `Engine.begin`."""
        ...

    def prepare_improvement(self) -> bool:
        """The slow part of making steps faster; see `Engine.prepare_improvement`."""
        ...

    def improve(self) -> bool:
        """A piece of making steps faster; see `Engine.improve`."""
        ...

    def clear(self, blocks: list[int]) -> None:
        """Overwrite blocks with zeros."""
        ...

    @property
    def shared_cores(self) -> str:
        """See `Engine.shared_cores`."""
        ...

    @property
    def urgency(self) -> Urgency:
        """See `Engine.urgency`."""
        ...

    def yield_cores(self) -> None:
        """See `Engine.yield_cores`."""
        ...


def engine_thread() -> ThreadPoolExecutor:
    """The thread for one engine's computing, loading too.

    All on one: each thread that computes keeps a pool of OpenMP threads, and where these are more
    than the cores they sleep between operations instead of spinning, which halves the speed.

    On a CPU it gives way, as do the threads that it starts: whoever is woken has a core at once.
    """
    return ThreadPoolExecutor(1, thread_name_prefix="engine", initializer=_give_way)


def _give_way() -> None:
    if best_device().type == "cpu":
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + _NICENESS)


class EngineWorker:
    """One thread in front of one engine; both loops of a replica share it."""

    def __init__(self, engine: Steps, thread: ThreadPoolExecutor | None = None) -> None:
        self._engine = engine
        self._thread = thread or engine_thread()
        self._under_way = 0

    def step(self, spans: list[Span]) -> Awaitable[list[Outcome]]:
        """Compute the spans, from now on. Never cut short, even when who waits is cancelled."""
        return self._run(lambda: self._engine.forward(spans))

    def begin(self, spans: list[Span], stored: Callable[[], None] | None = None) -> Slices:
        """A pass to `advance`, with other steps between its slices.

        `stored` is called in the event loop, for which the engine does not wait, when its KV is
        there and its tokens are not; not of every pass.
        """
        if stored is None:
            return self._engine.begin(spans)
        loop = asyncio.get_running_loop()

        def tell() -> None:
            loop.call_soon_threadsafe(stored)

        return self._engine.begin(spans, tell)

    def advance(self, run: Slices, for_s: float) -> Awaitable[list[Outcome] | None]:
        """Compute a pass for about that long; None while there is more."""
        return self._run(lambda: run.advance(for_s))

    def pursue(
        self, run: Slices, for_s: float, pause: Callable[[], bool], told: Callable[[], None]
    ) -> Awaitable[list[Outcome] | None]:
        """Advance a pass slice by slice, until it is computed or there is something else to do.

        That is where another step waits, or `pause`, asked on the engine's thread, says so: then
        None. Between slices `told` is called in the event loop, for which the engine does not wait:
        there and back takes most of a millisecond where all cores compute.
        """
        loop = asyncio.get_running_loop()

        def work() -> list[Outcome] | None:
            while (results := run.advance(for_s)) is None and self._under_way == 1 and not pause():
                loop.call_soon_threadsafe(told)
            return results

        return self._run(work)

    async def improve(self) -> None:
        """Make steps faster: slow preparations beside them, the rest piece by piece between.

        What is prepared, a compiler's work say, gives way as the engine does.
        """
        thread = ThreadPoolExecutor(1, thread_name_prefix="improvement", initializer=_give_way)
        try:
            loop = asyncio.get_running_loop()
            prepared = await loop.run_in_executor(thread, self._engine.prepare_improvement)
        finally:
            thread.shutdown(wait=False)
        while prepared and await self._run(self._engine.improve):
            pass

    async def scrub(self, pool: BlockPool) -> None:
        """Clear the blocks that a faulty request left; before every step, as NaNs would spread."""
        dirty = pool.take_dirty()
        if dirty:
            await self._run(lambda: self._engine.clear(dirty))
            pool.cleaned(dirty)

    @property
    def shared_cores(self) -> bool:
        """Whether others on this host may need the cores that steps are computed on, too."""
        return bool(self._engine.shared_cores)

    @property
    def urgency(self) -> Urgency:
        """How urgently others compute on this host."""
        return self._engine.urgency

    def yield_cores(self) -> None:
        """No step of this caller follows for a while: others may have the cores."""
        if not self._under_way:
            self._engine.yield_cores()

    def close(self) -> None:
        """Let the step in progress end and take no more."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _run(self, call: Callable[[], T]) -> Awaitable[T]:
        # Not run_in_executor: its chain of futures takes the event loop three rounds to walk, and
        # between two steps the device waits. Cancelling this one does not reach the thread.
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                result = call()
            except BaseException as error:
                loop.call_soon_threadsafe(self._fail, answer, error)
            else:
                loop.call_soon_threadsafe(self._answer, answer, result)

        self._under_way += 1
        self._thread.submit(work)
        return answer

    def _answer(self, future: asyncio.Future[T], result: T) -> None:
        self._under_way -= 1
        if not future.done():
            future.set_result(result)

    def _fail(self, future: asyncio.Future[T], error: BaseException) -> None:
        self._under_way -= 1
        if not future.done():
            future.set_exception(error)
