"""The decode loop: grant, schedule, forward, emit, retire."""

from __future__ import annotations

import asyncio
import logging
import time

from decode_pool import metrics
from decode_pool.job import DecodeJob
from decode_pool.scheduler import DecodeScheduler
from engine.errors import Internal, Overloaded, TandemError
from engine.sequence import Outcome, Span
from engine.worker import EngineWorker

log = logging.getLogger(__name__)


class DecodeLoop:
    """Steps the batch. `run` is the loop; the rest is called from servicers."""

    def __init__(self, scheduler: DecodeScheduler, worker: EngineWorker, max_jobs: int) -> None:
        self._scheduler = scheduler
        self._max_jobs = max_jobs
        self._worker = worker
        self._jobs: dict[str, DecodeJob] = {}
        self._wake = asyncio.Event()

    def register(self, job: DecodeJob) -> None:
        """Take a request on, to be admitted when its KV is offered; PromptTooLong, Overloaded."""
        self._scheduler.check_fits(job.sequence)
        if len(self._jobs) >= self._max_jobs:
            raise Overloaded(f"{self._max_jobs} requests are here already", retry_after_s=1.0)
        self._jobs[job.sequence.owner] = job

    async def admit(self, job: DecodeJob) -> None:
        """Wait for blocks for all of the job's tokens; Overloaded if too many wait.

        A local job joins the next step by this alone.
        """
        self._scheduler.offer(job.sequence, local=job.local)
        job.offered = True
        self._grant()
        self._wake.set()
        await job.granted

    def commit(self, job: DecodeJob) -> None:
        """The KV is here: the request joins the next step."""
        self._scheduler.commit(job.sequence.owner)
        self._wake.set()

    @property
    def expected(self) -> int:
        """Requests whose KV was not offered yet."""
        return sum(not job.offered for job in self._jobs.values())

    def release(self, job: DecodeJob) -> None:
        """End a request in whatever state it is, and free its blocks. Idempotent."""
        self._jobs.pop(job.sequence.owner, None)
        self._scheduler.remove(job.sequence.owner)
        job.granted.cancel()
        self._wake.set()

    async def run(self) -> None:
        """Generate for ever."""
        while True:
            self._wake.clear()
            await self._worker.scrub(self._scheduler.pool)
            self._grant()
            spans = self._scheduler.schedule()
            if not spans:
                await self._wake.wait()
                continue
            began = time.monotonic()
            try:
                results = await self._worker.step(spans)
            except Exception as error:
                self._fail(spans, error)
                continue
            metrics.STEP_TIME.observe(time.monotonic() - began)
            self._emit(spans, results)

    def _grant(self) -> None:
        for sequence in self._scheduler.grant():
            job = self._jobs[sequence.owner]
            if not job.granted.done():
                job.granted.set_result(None)

    def _emit(self, spans: list[Span], results: list[Outcome]) -> None:
        metrics.BATCH.observe(len(spans))
        outcomes = dict(zip((span.sequence.owner for span in spans), results, strict=True))
        self._condemn(outcomes)
        for span in self._scheduler.complete(spans):
            owner = span.sequence.owner
            job, outcome = self._jobs[owner], outcomes[owner]
            if isinstance(outcome, Internal):
                self._end(job, outcome)
            elif outcome is not None:
                job.take(outcome)
                metrics.TOKENS.inc(1)
                if job.finished:
                    self._end(job)

    def _condemn(self, outcomes: dict[str, Outcome]) -> None:
        for owner, outcome in outcomes.items():
            if isinstance(outcome, Internal):
                self._scheduler.pool.condemn(owner)

    def _fail(self, spans: list[Span], error: Exception) -> None:
        """A step broke: its requests end with an error, the loop goes on."""
        log.exception("decode step failed, %d requests with it", len(spans))
        metrics.STEP_FAILURES.inc(1)
        fault = error if isinstance(error, TandemError) else Internal("a decode step failed")
        self._scheduler.complete([])
        for span in spans:
            job = self._jobs.get(span.sequence.owner)
            if job:
                self._end(job, fault)

    def _end(self, job: DecodeJob, fault: TandemError | None = None) -> None:
        """Retire a request, or fail it; its blocks are free for the next step."""
        owner = job.sequence.owner
        job.preemptions = self._scheduler.preemptions(owner)
        metrics.PREEMPTIONS.inc(job.preemptions)
        self._scheduler.remove(owner)
        if fault is not None:
            job.fail(fault)
