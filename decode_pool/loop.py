"""The decode loop: grant, schedule, forward, take, read, retire."""

from __future__ import annotations

import asyncio
import logging
import time

from decode_pool import metrics
from decode_pool.job import DecodeJob
from decode_pool.scheduler import DecodeScheduler
from engine.errors import Internal, Overloaded, TandemError
from engine.sequence import Outcome, Span
from engine.worker import EngineWorker, Slices

log = logging.getLogger(__name__)


class DecodeLoop:
    """Steps the batch. `run` is the loop; the rest is called from servicers."""

    def __init__(
        self,
        scheduler: DecodeScheduler,
        worker: EngineWorker,
        max_jobs: int,
        token_gap_s: float,
    ) -> None:
        self._scheduler = scheduler
        self._token_gap_s = token_gap_s
        self._step_s = 0.0
        self._chunk: Slices | None = None
        self._max_jobs = max_jobs
        self._worker = worker
        self._jobs: dict[str, DecodeJob] = {}
        self._unread: list[DecodeJob] = []
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

    def admit_early(self, job: DecodeJob) -> bool:
        """Blocks for a prompt that is still being computed elsewhere, if there are plenty."""
        granted = self._scheduler.grant_early(job.sequence)
        job.offered = job.offered or granted
        return granted

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
        """Generate for ever: a step, then a slice of what is computed beside the steps.

        What either gave becomes text while the next one runs.
        """
        while True:
            self._wake.clear()
            await self._worker.scrub(self._scheduler.pool)
            self._grant()
            stepped = await self._step()
            if not await self._slice() and not stepped:
                self._read()
                await self._wake.wait()

    async def _step(self) -> bool:
        """A token for each running request; False if there is none."""
        spans = self._scheduler.schedule()
        began = time.monotonic()
        if not spans:
            self._step_s = 0.0
            return False
        step = self._worker.step(spans)
        self._read()
        try:
            results = await step
        except Exception as error:
            self._fail(spans, error)
            return True
        self._step_s = time.monotonic() - began
        metrics.STEP_TIME.observe(self._step_s)
        metrics.BATCH.observe(len(spans))
        self._take(spans, results)
        return True

    async def _slice(self) -> bool:
        """Compute some of what is due beside the steps; False if there is nothing."""
        if self._chunk is None:
            spans = self._scheduler.schedule_chunk()
            if not spans:
                return False
            self._chunk = self._worker.begin(spans)
        spans = self._chunk.spans
        slice_ = self._worker.advance(self._chunk, max(0.0, self._token_gap_s - self._step_s))
        self._read()
        try:
            results = await slice_
        except Exception as error:
            self._chunk = None
            self._fail(spans, error)
            return True
        if results is not None:
            self._chunk = None
            self._take(spans, results)
        return True

    def _grant(self) -> None:
        for sequence in self._scheduler.grant():
            job = self._jobs[sequence.owner]
            if not job.granted.done():
                job.granted.set_result(None)

    def _take(self, spans: list[Span], results: list[Outcome]) -> None:
        outcomes = dict(zip((span.sequence.owner for span in spans), results, strict=True))
        self._condemn(outcomes)
        for span in self._scheduler.complete(spans):
            owner = span.sequence.owner
            job, outcome = self._jobs[owner], outcomes[owner]
            if isinstance(outcome, Internal):
                self._end(job, outcome)
            elif outcome is not None:
                job.take(outcome)
                self._unread.append(job)
                if job.finished:
                    self._end(job)

    def _read(self) -> None:
        """Make text of what the last step gave, and send it off."""
        metrics.TOKENS.inc(len(self._unread))
        for job in self._unread:
            ended = job.finished
            job.read()
            if job.finished and not ended and self._jobs.get(job.sequence.owner) is job:
                self._end(job)
        self._unread.clear()

    def _condemn(self, outcomes: dict[str, Outcome]) -> None:
        for owner, outcome in outcomes.items():
            if isinstance(outcome, Internal):
                self._scheduler.pool.condemn(owner)

    def _fail(self, spans: list[Span], error: Exception) -> None:
        """A step broke: its requests end with an error, the loop goes on."""
        log.exception("decode step failed, %d requests with it", len(spans))
        metrics.STEP_FAILURES.inc(1)
        fault = error if isinstance(error, TandemError) else Internal("a decode step failed")
        self._scheduler.abandon(spans)
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
