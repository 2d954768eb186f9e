"""The common part of both pools' loops: requests, wakeups, passes, and failed steps."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from engine.errors import Internal, TandemError
from engine.loop_wakeup import LoopWakeup, PassEnds, StepEnds
from engine.runtime.engine_thread import EngineWorker, Slices
from engine.scheduling.pass_scheduler import PassScheduler
from engine.scheduling.prompt_queue import QueuePosition
from engine.telemetry import Counter
from engine.types.sequence import Outcome, SampledToken, Sequence, Span, collected

log = logging.getLogger(__name__)

# The results of a step or a pass by owner, without the scores.
Outcomes = dict[str, SampledToken | TandemError | None]


class PoolJob(Protocol):
    """One request in a loop."""

    sequence: Sequence

    def cancel(self) -> None:
        """Note that no caller waits for the request any more."""
        ...


JobT = TypeVar("JobT", bound=PoolJob)


class PoolLoop(ABC, Generic[JobT]):
    """The requests of one loop and the passes that it has begun, the newest last.

    Servicers call the public methods. A pool's own loop adds `run`.
    """

    def __init__(
        self, pool: str, scheduler: PassScheduler, worker: EngineWorker, step_failures: Counter
    ) -> None:
        self._pool = pool
        self._scheduler = scheduler
        self._worker = worker
        self._step_failures = step_failures
        self._jobs: dict[str, JobT] = {}
        self._passes: list[Slices] = []
        self._ends = StepEnds(scheduler.leaving)
        self.wakeup = LoopWakeup()
        self.pass_ends = PassEnds()

    def release(self, job: JobT) -> None:
        """End a request in any state, and free its blocks. Idempotent."""
        self._jobs.pop(job.sequence.owner, None)
        self._scheduler.remove(job.sequence.owner)
        job.cancel()
        self.wakeup.set()  # before the halt: a pass goes on by itself where nothing is pending
        if self._passes and not self._scheduler.wanted(self._passes[-1].spans):
            self._passes[-1].halt()

    def queue_positions(self) -> dict[str, QueuePosition]:
        """The queue position of each waiting prompt, by owner."""
        return self._scheduler.queue_positions(time.monotonic())

    async def vacated(self, job: JobT) -> None:
        """Wait until no step writes to the blocks of this job, which was released."""
        await self._ends.vacated(job.sequence.owner)

    async def _begin_round(self) -> None:
        """Begin a round of the loop: a request that comes from now on wakes it."""
        self.wakeup.clear()
        await self._worker.scrub(self._scheduler.pool)

    def _cut_slice(self) -> None:
        """End the slice in progress with its layer."""
        if self._passes:
            self._passes[-1].cut()

    def _begin_with(self, spans: list[Span], stored: Callable[[], None] | None = None) -> bool:
        """Begin a pass over these spans; False where it fails, and its requests with it."""
        try:
            self._passes.append(self._worker.begin(spans, stored))
        except Exception as error:
            self._fail(spans, error)
            return False
        return True

    def _drop_unwanted(self) -> None:
        """Drop each pass whose requests have all gone."""
        for run in [run for run in self._passes if not self._scheduler.wanted(run.spans)]:
            self._passes.remove(run)
            self._scheduler.abandon(run.spans)
            self._ends.tell()

    def _collect(self, spans: list[Span], results: list[Outcome]) -> Outcomes:
        """The results of a step by owner. The blocks of each faulty owner are condemned."""
        outcomes: Outcomes = {}
        for span, result in zip(spans, results, strict=True):
            owner = span.sequence.owner
            if isinstance(result, SampledToken):
                outcomes[owner] = result
                continue
            outcome = outcomes[owner] = collected(span, result)
            if isinstance(outcome, TandemError):
                self._scheduler.pool.condemn(owner)
        return outcomes

    def _fail(self, spans: list[Span], error: Exception) -> None:
        """End the requests of a failed step or pass with an error. The loop goes on.

        A request that ended while the step went on has its result, and may still be here.
        """
        log.exception("%s step failed, %d requests with it", self._pool, len(spans))
        self._step_failures.inc(1)
        fault = error if isinstance(error, TandemError) else Internal(f"a {self._pool} step failed")
        self._scheduler.abandon(spans)
        self._ends.tell()
        for span in spans:
            job = self._jobs.get(span.sequence.owner)
            if job is not None and self._scheduler.wanted([span]):
                self._end(job, fault)
        self.wakeup.set()

    @abstractmethod
    def _end(self, job: JobT, fault: TandemError) -> None:
        """Fail a request and free its blocks."""
