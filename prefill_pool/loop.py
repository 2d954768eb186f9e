"""The prefill loop: schedule, forward, first token."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.errors import Internal, TandemError
from engine.sequence import Outcome, SampledToken, Sequence, Span
from engine.worker import EngineWorker
from prefill_pool import metrics
from prefill_pool.scheduler import PrefillScheduler

log = logging.getLogger(__name__)


# Hears that the KV of so many leading tokens is computed, in so many leading layers (None: in all).
# First when the prompt has its blocks, which then are its own until the end.
Watch = Callable[[int, int | None], None]

# How long a pass is computed until it is told which layers are done.
_SLICE_S = 0.02


@dataclass(frozen=True, slots=True)
class FirstToken:
    """A prompt's end: the sampled token, and how long it waited and was computed."""

    token: SampledToken
    queue_s: float
    prefill_s: float


@dataclass(slots=True)
class PrefillJob:
    """A request in this replica; `first_token` resolves when its prompt is computed."""

    sequence: Sequence
    arrived_s: float
    first_token: asyncio.Future[FirstToken]
    started_s: float | None = field(default=None)
    watch: Watch | None = None

    def computed(self, tokens: int, layers: int | None = None) -> None:
        """Tell the watcher how far the prompt is."""
        if self.watch is not None:
            self.watch(tokens, layers)


class PrefillLoop:
    """Computes prompts in chunk batches. `run` is the loop; the rest is called from servicers."""

    def __init__(self, scheduler: PrefillScheduler, worker: EngineWorker) -> None:
        self._scheduler = scheduler
        self._worker = worker
        self._jobs: dict[str, PrefillJob] = {}
        self._wake = asyncio.Event()

    def submit(self, sequence: Sequence, ttft_budget_s: float) -> PrefillJob:
        """Queue a prompt, due that many seconds from now; PromptTooLong or Overloaded."""
        now = time.monotonic()
        self._scheduler.submit(sequence, now + ttft_budget_s)
        first_token = asyncio.get_running_loop().create_future()
        job = PrefillJob(sequence, now, first_token)
        self._jobs[sequence.owner] = job
        self._wake.set()
        return job

    def release(self, job: PrefillJob) -> None:
        """End a request in whatever state it is, and free its blocks. Idempotent."""
        self._jobs.pop(job.sequence.owner, None)
        self._scheduler.remove(job.sequence.owner)
        job.first_token.cancel()
        self._wake.set()

    async def run(self) -> None:
        """Compute prompts for ever."""
        while True:
            self._wake.clear()
            await self._worker.scrub(self._scheduler.pool)
            spans = self._scheduler.schedule()
            if not spans:
                await self._wake.wait()
                continue
            self._note_start(spans)
            try:
                results = await self._compute(spans)
            except Exception as error:
                self._fail(spans, error)
                continue
            self._answer(spans, results)

    async def _compute(self, spans: list[Span]) -> list[Outcome]:
        run = self._worker.begin(spans)
        while (results := await self._worker.advance(run, _SLICE_S)) is None:
            self._tell(spans, run.layers_done)
        return results

    def _tell(self, spans: list[Span], layers: int | None = None) -> None:
        """Say how far a pass over these spans is."""
        for span in spans:
            job = self._jobs.get(span.sequence.owner)
            if job is not None:
                job.computed(span.start + span.count, layers)

    def _note_start(self, spans: list[Span]) -> None:
        now = time.monotonic()
        for span in spans:
            job = self._jobs[span.sequence.owner]
            if job.started_s is None:
                job.started_s = now
                job.computed(span.start)
                metrics.QUEUE_WAIT.observe(now - job.arrived_s)

    def _answer(self, spans: list[Span], results: list[Outcome]) -> None:
        now = time.monotonic()
        metrics.TOKENS.inc(sum(span.count for span in spans))
        outcomes = dict(zip((span.sequence.owner for span in spans), results, strict=True))
        self._condemn(outcomes)
        self._tell(
            [span for span in spans if not isinstance(outcomes[span.sequence.owner], Internal)]
        )
        for sequence in self._scheduler.complete(spans):
            job, outcome = self._jobs[sequence.owner], outcomes[sequence.owner]
            if job.first_token.done():
                continue
            if isinstance(outcome, Internal):
                self._scheduler.remove(sequence.owner)
                job.first_token.set_exception(outcome)
            elif outcome is None or job.started_s is None:
                job.first_token.set_exception(Internal("a whole prompt gave no token"))
            else:
                queue_s, prefill_s = job.started_s - job.arrived_s, now - job.started_s
                job.first_token.set_result(FirstToken(outcome, queue_s, prefill_s))

    def _condemn(self, outcomes: dict[str, Outcome]) -> None:
        for owner, outcome in outcomes.items():
            if isinstance(outcome, Internal):
                self._scheduler.pool.condemn(owner)

    def _fail(self, spans: list[Span], error: Exception) -> None:
        """A step broke: its requests end with an error, the loop goes on."""
        log.exception("prefill step failed, %d requests with it", len(spans))
        metrics.STEP_FAILURES.inc(1)
        fault = error if isinstance(error, TandemError) else Internal("a prefill step failed")
        self._scheduler.complete([])
        for span in spans:
            job = self._jobs.pop(span.sequence.owner, None)
            self._scheduler.remove(span.sequence.owner)
            if job and not job.first_token.done():
                job.first_token.set_exception(fault)
