"""The prefill loop: schedule, a slice of a pass, first tokens."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.errors import Internal, TandemError
from engine.loop_wakeup import LoopWakeup, StepEnds
from engine.metrics import PROMPT_TOKENS
from engine.runtime.engine_thread import EngineWorker, Slices
from engine.scheduling.prompt_queue import QueuePosition
from engine.types.sequence import Outcome, SampledToken, Sequence, Span, collected
from engine.types.urgency import Urgency
from prefill_pool import metrics
from prefill_pool.scheduler import PrefillScheduler

log = logging.getLogger(__name__)

# How long a pass is computed until a more urgent prompt may overtake it, and it is told how far.
_SLICE_S = 0.02


# Hears that the KV of so many leading tokens is computed, in so many leading layers (None: in all).
# First when the prompt has its blocks, which then are its own until the end.
Watch = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """A prompt's end: the sampled token, and how long it waited and was computed."""

    token: SampledToken
    queue_s: float
    prefill_s: float


@dataclass(frozen=True, slots=True)
class _PassResult:
    """What a pass gave by `at_s`: tokens or faults by owner, and `whole` prompts."""

    spans: list[Span]
    outcomes: Mapping[str, SampledToken | Internal | None]
    whole: list[Sequence]
    at_s: float


@dataclass(slots=True)
class PrefillJob:
    """A request in this replica; `first_token` resolves when its prompt is computed."""

    sequence: Sequence
    arrived_s: float
    first_token: asyncio.Future[PrefillResult]
    started_s: float | None = field(default=None)
    watch: Watch | None = None

    def computed(self, tokens: int, layers: int | None = None) -> None:
        """Tell the watcher how far the prompt is."""
        if self.watch is not None:
            self.watch(tokens, layers)


class PrefillLoop:
    """Computes prompts in passes over chunks of them, the last one begun first.

    `run` is the loop; the rest is called from servicers.
    """

    def __init__(self, scheduler: PrefillScheduler, worker: EngineWorker) -> None:
        self._scheduler = scheduler
        self._worker = worker
        self._jobs: dict[str, PrefillJob] = {}
        self._passes: list[Slices] = []
        self._unanswered: list[_PassResult] = []
        self._counted_s = 0.0
        self.wake = LoopWakeup()
        self._ends = StepEnds(scheduler.leaving)

    def submit(self, sequence: Sequence) -> PrefillJob:
        """Queue a prompt, due within its budget; PromptTooLong or Overloaded."""
        now = time.monotonic()
        self._scheduler.submit(sequence, now)
        first_token = asyncio.get_running_loop().create_future()
        job = PrefillJob(sequence, now, first_token)
        self._jobs[sequence.owner] = job
        self.wake.set()
        if self._passes:
            # It may be the more urgent one, which the scheduler says between two layers.
            self._passes[-1].cut()
        return job

    async def compute(self, sequence: Sequence) -> None:
        """Compute a prompt for its KV alone, which stays in the cache."""
        job = self.submit(sequence)
        try:
            await job.first_token
        finally:
            self.release(job)

    def release(self, job: PrefillJob) -> None:
        """End a request in whatever state it is, and free its blocks. Idempotent."""
        self._jobs.pop(job.sequence.owner, None)
        self._scheduler.remove(job.sequence.owner)
        job.first_token.cancel()
        self.wake.set()  # before the halt: a pass goes on by itself where nothing is pending
        if self._passes and not self._scheduler.wanted(self._passes[-1].spans):
            self._passes[-1].halt()

    def places(self) -> dict[str, QueuePosition]:
        """Where the prompts that wait are in their lines."""
        return self._scheduler.places(time.monotonic())

    async def vacated(self, job: PrefillJob) -> None:
        """Wait until no step writes to the blocks of this job, which was released."""
        await self._ends.vacated(job.sequence.owner)

    async def run(self) -> None:
        """Compute prompts for ever; what a pass gave is answered while the next one runs."""
        while True:
            self.wake.clear()
            await self._worker.scrub(self._scheduler.pool)
            self._begin()
            if self._passes:
                await self._advance(self._passes[-1])
            else:
                self._worker.rest()
                self._answer()
                await self.wake.wait()

    def _begin(self) -> None:
        """Begin the next pass, or one that overtakes those under way, if there is one."""
        self._drop_unwanted()
        spans = self._scheduler.schedule(time.monotonic())
        if spans:
            self._passes.append(self._worker.begin(spans, lambda: self._stored(spans)))

    def _drop_unwanted(self) -> None:
        """Passes whose requests are all gone are not computed to their end."""
        for run in [run for run in self._passes if not self._scheduler.wanted(run.spans)]:
            self._passes.remove(run)
            self._scheduler.abandon(run.spans)
            self._ends.tell()

    async def _advance(self, run: Slices) -> None:
        """Compute until the pass is whole, or something came that may overtake it or end it."""
        self._counted_s = time.monotonic()
        pursued = self._worker.pursue(
            run, _SLICE_S, lambda: self.wake.pending, lambda: self._went_on(run)
        )
        # What others are told waits until the engine computes again.
        self._note_start(run.spans)
        self._answer()
        try:
            results = await pursued
        except asyncio.CancelledError:
            self.wake.set()  # or the engine would go on alone
            raise
        except Exception as error:
            self._passes.remove(run)
            self._fail(run.spans, error)
            return
        self._went_on(run, whole=results is not None)
        if results is not None:
            self._passes.remove(run)
            self._complete(run.spans, results)

    def _went_on(self, run: Slices, *, whole: bool = False) -> None:
        """Note how far a pass is, and for how long it was computed."""
        now = time.monotonic()
        self._scheduler.advanced(run.spans, now - self._counted_s)
        self._counted_s = now
        # Each part that leaves takes of the cores that pressed prompts are computed on.
        hurried = any(span.sequence.pressed for span in run.spans) and self._worker.shared_cores
        if not (whole or hurried):
            self._tell(run.spans, run.layers_done)

    def _stored(self, spans: list[Span]) -> None:
        """The KV of prompts that end with this pass leaves while their first tokens are sampled.

        Of urgent ones on shared cores it leaves while the next pass is computed.
        """
        urgent = any(span.sequence.urgency is Urgency.URGENT for span in spans)
        if not (urgent and self._worker.shared_cores):
            self._tell(spans)

    def _tell(self, spans: list[Span], layers: int | None = None) -> None:
        """Say how far a pass over these spans is."""
        for span in spans:
            job = self._jobs.get(span.sequence.owner)
            if job is not None:
                job.computed(span.start + span.count, layers)

    def _note_start(self, spans: list[Span]) -> None:
        now = time.monotonic()
        for span in spans:
            job = self._jobs.get(span.sequence.owner)
            if job is not None and job.started_s is None:
                job.started_s = now
                job.computed(span.start)
                queue_s = now - job.arrived_s
                metrics.QUEUE_WAIT.observe(queue_s, lane=job.sequence.lane)
                log.info("prefill started", extra={**job.sequence.named_in_log, "queue_s": queue_s})

    def _complete(self, spans: list[Span], results: list[Outcome]) -> None:
        """A pass is computed; whoever needs its blocks, or is to be computed next, sees that."""
        PROMPT_TOKENS.inc(sum(span.count for span in spans), pool="prefill")
        outcomes = {s.sequence.owner: collected(s, r) for s, r in zip(spans, results, strict=True)}
        self._condemn(outcomes)
        whole = self._scheduler.complete(spans)
        self._ends.tell()
        self._unanswered.append(_PassResult(spans, outcomes, whole, time.monotonic()))

    def _answer(self) -> None:
        """Tell those that wait what the last passes gave."""
        computed, self._unanswered = self._unanswered, []
        for one in computed:
            faulty = {o for o, outcome in one.outcomes.items() if isinstance(outcome, Internal)}
            self._tell([span for span in one.spans if span.sequence.owner not in faulty])
            for sequence in one.whole:
                job = self._jobs.get(sequence.owner)
                if job is not None and not job.first_token.done():
                    self._answer_one(job, one.outcomes[sequence.owner], one.at_s)

    def _answer_one(
        self, job: PrefillJob, outcome: SampledToken | Internal | None, computed_s: float
    ) -> None:
        if isinstance(outcome, Internal):
            self._scheduler.remove(job.sequence.owner)
            job.first_token.set_exception(outcome)
        elif outcome is None or job.started_s is None:
            job.first_token.set_exception(Internal("a whole prompt gave no token"))
        else:
            queue_s, prefill_s = job.started_s - job.arrived_s, computed_s - job.started_s
            job.first_token.set_result(PrefillResult(outcome, queue_s, prefill_s))

    def _condemn(self, outcomes: Mapping[str, Outcome]) -> None:
        for owner, outcome in outcomes.items():
            if isinstance(outcome, Internal):
                self._scheduler.pool.condemn(owner)

    def _fail(self, spans: list[Span], error: Exception) -> None:
        """A step broke: its requests end with an error, the loop goes on."""
        log.exception("prefill step failed, %d requests with it", len(spans))
        metrics.STEP_FAILURES.inc(1)
        fault = error if isinstance(error, TandemError) else Internal("a prefill step failed")
        self._scheduler.abandon(spans)
        self._ends.tell()
        for span in spans:
            job = self._jobs.pop(span.sequence.owner, None)
            self._scheduler.remove(span.sequence.owner)
            if job and not job.first_token.done():
                job.first_token.set_exception(fault)
        self.wake.set()
