"""The engine's thread: it computes one step at a time, so that the event loop never waits."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from engine.device import best_device
from engine.kv.block_pool import BlockPool
from engine.runtime.step_deadline import StepDeadline
from engine.runtime.step_launch import Launched, StepLaunch
from engine.types.sequence import Outcome, Span
from engine.types.urgency import Urgency

T = TypeVar("T")

# The deadline of a step in the usual configuration, `model.step_timeout_s`.
_STEP_TIMEOUT_S = 30.0

# Tuned: an engine uses all cores, but event loops, which refuse in time, go first. At 19 the served
# requests of an overloaded host come late instead.
_NICENESS = 10
# Tuned: on a GPU the thread that launches gets Python's lock after so long from a busy event loop.
# The usual 5 ms are a whole step.
_SWITCH_S = 0.0005


class Slices(Protocol):
    """A pass in slices; see `engine.runtime.forward_pass.Pass`."""

    spans: list[Span]
    layers_done: int

    def advance(self, for_s: float | None = None) -> list[Outcome] | None:
        """Compute for about `for_s` seconds; None while the pass is not complete."""
        ...

    def cut(self) -> None:
        """End the slice in progress at the next layer."""
        ...

    def halt(self) -> None:
        """End the pass for good, as soon as possible."""
        ...


class Steps(Protocol):
    """Computes spans: the engine, or a stand-in for it in tests."""

    @property
    def rows_ahead(self) -> int:
        """See `Engine.rows_ahead`."""
        ...

    def launch(self, spans: list[Span]) -> Launched:
        """Launch a step and wait for nothing; see `Engine.launch`."""
        ...

    def forward(self, spans: list[Span]) -> list[Outcome]:
        """Compute the spans; see `Engine.forward`."""
        ...

    def begin(self, spans: list[Span], stored: Callable[[], None] | None = None) -> Slices:
        """Compute the spans in slices; see `Engine.begin`."""
        ...

    def prepare_improvement(self) -> bool:
        """Do the slow part of making steps faster; see `Engine.prepare_improvement`."""
        ...

    def improve(self) -> bool:
        """Swap in a piece of the improvement; see `Engine.improve`."""
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
    """The thread on which one engine loads and computes.

    There is one thread, because each computing thread keeps a pool of OpenMP threads. If these are
    more than the cores, they sleep between operations instead of spinning, which halves the speed.
    On a CPU the thread and its OpenMP threads have a lower priority than the event loop. On a GPU
    the thread launches work, and the event loop gives way to it.
    """
    return ThreadPoolExecutor(1, thread_name_prefix="engine", initializer=_set_priority)


def _set_priority() -> None:
    if best_device().type != "cpu":
        sys.setswitchinterval(_SWITCH_S)
        return
    own = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + _NICENESS)


class EngineWorker:
    """One thread in front of one engine; both loops of a replica share it."""

    def __init__(
        self,
        engine: Steps,
        thread: ThreadPoolExecutor | None = None,
        step_timeout_s: float = _STEP_TIMEOUT_S,
    ) -> None:
        self._engine = engine
        self.deadline = StepDeadline(step_timeout_s)
        self._thread = thread or engine_thread()
        self._under_way = 0

    def step(self, spans: list[Span]) -> Awaitable[list[Outcome]]:
        """Compute the spans, from now on. A step goes on even if its caller is cancelled."""
        return self._run(lambda: self._engine.forward(spans))

    @property
    def rows_ahead(self) -> int:
        """The most rows of a step that may be launched behind a step without results; 0: none."""
        return self._engine.rows_ahead

    def launch(self, spans: list[Span]) -> StepLaunch:
        """Launch a step, behind what was launched before."""
        launch = StepLaunch(lambda: self._engine.launch(spans))
        self._thread.submit(launch.begin)
        return launch

    def results(self, launch: StepLaunch) -> Awaitable[list[Outcome]]:
        """Wait for a launched step. What is launched before this call is launched before it."""
        return self._run(launch.outcomes)

    def begin(self, spans: list[Span], stored: Callable[[], None] | None = None) -> Slices:
        """Begin a pass to `advance`, with other steps between its slices.

        `stored` is called in the event loop when the KV is stored and no token is sampled yet, if
        the engine can tell. The engine does not wait for the call.
        """
        if stored is None:
            return self._engine.begin(spans)
        loop = asyncio.get_running_loop()

        def tell() -> None:
            loop.call_soon_threadsafe(stored)

        return self._engine.begin(spans, tell)

    def advance(self, run: Slices, for_s: float) -> Awaitable[list[Outcome] | None]:
        """Compute a pass for about `for_s` seconds; None while it is not complete."""
        return self._run(lambda: run.advance(for_s))

    def pursue(
        self, run: Slices, for_s: float, pause: Callable[[], bool], on_slice: Callable[[], None]
    ) -> Awaitable[list[Outcome] | None]:
        """Advance a pass slice by slice, until it is complete; None if it is interrupted.

        Another waiting step interrupts the pass, and so does `pause`, which the engine's thread
        calls. Between slices `on_slice` is called in the event loop. The engine does not wait for
        the call, which takes most of a millisecond where all cores compute.
        """
        loop = asyncio.get_running_loop()

        def work() -> list[Outcome] | None:
            while (results := run.advance(for_s)) is None and self._under_way == 1 and not pause():
                self.deadline.progressed(time.monotonic())
                loop.call_soon_threadsafe(on_slice)
            return results

        return self._run(work)

    async def improve(self) -> None:
        """Make steps faster: prepare beside the steps, then swap in pieces between them.

        The preparation, for example compiling, has the priority of the engine's thread.
        """
        thread = ThreadPoolExecutor(1, thread_name_prefix="improvement", initializer=_set_priority)
        try:
            loop = asyncio.get_running_loop()
            prepared = await loop.run_in_executor(thread, self._engine.prepare_improvement)
        finally:
            thread.shutdown(wait=False)
        while prepared and await self._run(self._engine.improve):
            pass

    async def scrub(self, pool: BlockPool) -> None:
        """Clear the blocks of faulty requests; needed before every step, as NaNs would spread."""
        dirty = pool.take_dirty()
        if dirty:
            await self._run(lambda: self._engine.clear(dirty))
            pool.cleaned(dirty)

    def stalled(self, due: bool) -> bool:
        """Whether the engine has work, and completed none within its deadline.

        `due` says whether a step should follow at once where none is under way.
        """
        return self.deadline.overdue(due or self._under_way > 0, time.monotonic())

    @property
    def shared_cores(self) -> bool:
        """Whether other engines on this host compute on the same cores."""
        return bool(self._engine.shared_cores)

    @property
    def urgency(self) -> Urgency:
        """The urgency of prompts that other engines compute on these cores."""
        return self._engine.urgency

    def yield_cores(self) -> None:
        """Let other engines use the cores until the next step."""
        if not self._under_way:
            self._engine.yield_cores()

    def close(self) -> None:
        """Let the current step end, and compute no more."""
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
        self._ended()
        if not future.done():
            future.set_result(result)

    def _ended(self) -> None:
        self._under_way -= 1
        self.deadline.progressed(time.monotonic())

    def _fail(self, future: asyncio.Future[T], error: BaseException) -> None:
        self._ended()
        if not future.done():
            future.set_exception(error)
