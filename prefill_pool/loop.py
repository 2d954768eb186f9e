"""The prefill loop: schedule, forward, first tokens; servicers admit before and hand over after."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.errors import Internal, TandemError
from engine.metrics import PROMPT_TOKENS
from engine.runtime.engine_thread import EngineWorker, Slices
from engine.runtime.pool_loop import PoolLoop
from engine.types.sequence import Outcome, SampledToken, Sequence, Span
from prefill_pool import metrics, shared_cores
from prefill_pool.scheduler import PrefillScheduler

log = logging.getLogger(__name__)

# Tuned, for the TTFT of short prompts: the least time that a pass is computed before a more urgent
# prompt may overtake it. It is a time of computing, so it means the same on every device.
_SLICE_S = 0.02

# Called with the number of leading tokens with KV, and of leading layers (None: all).
# The first call comes when the prompt has its blocks; the prompt keeps these blocks to its end.
Watch = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """The result of a prompt: its first token, and its times of waiting and computing.

    `computed_s` is when it was computed (monotonic).
    """

    token: SampledToken
    queue_s: float
    prefill_s: float
    computed_s: float


@dataclass(frozen=True, slots=True)
class _PassResult:
    """The results of a pass at `at_s`: tokens or faults by owner, and `whole` prompts."""

    spans: list[Span]
    outcomes: Mapping[str, SampledToken | TandemError | None]
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
        """Tell the watcher the number of computed tokens and layers.

        A fault of the watcher ends the request, and nothing else.
        """
        if self.watch is None:
            return
        try:
            self.watch(tokens, layers)
        except Exception:
            log.exception("no hand-over of KV", extra=self.sequence.named_in_log)
            self.watch = None
            self.fail(Internal("the KV of the prompt could not be handed over"))

    def cancel(self) -> None:
        """Note that no caller waits for the first token any more."""
        self.first_token.cancel()

    def fail(self, error: TandemError) -> None:
        """End the request with an error, unless it has ended."""
        if not self.first_token.done():
            self.first_token.set_exception(error)


class PrefillLoop(PoolLoop[PrefillJob]):
    """Computes prompts in passes over chunks of them; the newest pass comes first.

    `run` is the loop. Servicers call the other public methods.
    """

    _scheduler: PrefillScheduler

    def __init__(self, scheduler: PrefillScheduler, worker: EngineWorker) -> None:
        super().__init__("prefill", scheduler, worker, metrics.STEP_FAILURES)
        self._shares_cores = worker.shared_cores
        self._unanswered: list[_PassResult] = []
        self._counted_s = 0.0

    def submit(self, sequence: Sequence) -> PrefillJob:
        """Admit a prompt to the queue, due within its budget; PromptTooLong or Overloaded."""
        now = time.monotonic()
        self._scheduler.submit(sequence, now)
        first_token = asyncio.get_running_loop().create_future()
        job = PrefillJob(sequence, now, first_token)
        self._jobs[sequence.owner] = job
        self.wakeup.set()
        # The scheduler may let the new prompt overtake the pass, between two layers.
        self._cut_slice()
        return job

    async def compute(self, sequence: Sequence) -> None:
        """Compute a prompt for its KV alone, which stays in the cache."""
        job = self.submit(sequence)
        try:
            await job.first_token
        finally:
            self.release(job)

    async def run(self) -> None:
        """Compute prompts for ever; the results of a pass are answered during the next pass."""
        while True:
            await self._begin_round()
            self._schedule()
            if self._passes:
                await self._forward(self._passes[-1])
            else:
                self._worker.yield_cores()
                self._answer()
                await self.wakeup.wait()

    def _schedule(self) -> None:
        """Begin the next pass, or a pass that overtakes the others, if there is one."""
        self._drop_unwanted()
        spans = self._scheduler.schedule(time.monotonic())
        if spans:
            self._begin_with(spans, lambda: self._stored(spans))

    async def _forward(self, run: Slices) -> None:
        """Compute until the pass is complete, or an event may overtake or end it."""
        self._counted_s = time.monotonic()
        pursued = self._worker.pursue(
            run, _SLICE_S, lambda: self.wakeup.pending, lambda: self._note_progress(run)
        )
        # Answers wait until the engine computes again.
        self._note_start(run.spans)
        self._answer()
        try:
            results = await pursued
        except asyncio.CancelledError:
            self.wakeup.set()  # so that the loop goes on, and not the engine alone
            raise
        except Exception as error:
            self._passes.remove(run)
            self._fail(run.spans, error)
            return
        self._note_progress(run, whole=results is not None)
        if results is not None:
            self._passes.remove(run)
            self._complete(run.spans, results)

    def _note_progress(self, run: Slices, *, whole: bool = False) -> None:
        """Note the progress of a pass, and its time of computing."""
        now = time.monotonic()
        self._scheduler.advanced(run.spans, now - self._counted_s)
        self._counted_s = now
        delayed = self._shares_cores and not shared_cores.announces_layers(run.spans)
        if not (whole or delayed):
            self._announce(run.spans, run.layers_done)

    def _stored(self, spans: list[Span]) -> None:
        """Announce the complete KV of a pass, before its first tokens are sampled."""
        if not self._shares_cores or shared_cores.announces_stored(spans):
            self._announce(spans)

    def _announce(self, spans: list[Span], layers: int | None = None) -> None:
        """Tell each watcher the progress of a pass over these spans."""
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
        """Note a computed pass in the scheduler; `_answer` tells its requests later."""
        PROMPT_TOKENS.inc(sum(span.count for span in spans), pool="prefill")
        outcomes = self._collect(spans, results)
        whole = self._scheduler.complete(spans)
        self._ends.tell()
        self.pass_ends.tell()
        self._unanswered.append(_PassResult(spans, outcomes, whole, time.monotonic()))

    def _answer(self) -> None:
        """Give the results of the last passes to their requests."""
        computed, self._unanswered = self._unanswered, []
        for one in computed:
            faulty = {o for o, outcome in one.outcomes.items() if isinstance(outcome, TandemError)}
            self._announce([span for span in one.spans if span.sequence.owner not in faulty])
            for sequence in one.whole:
                job = self._jobs.get(sequence.owner)
                if job is not None and not job.first_token.done():
                    self._answer_one(job, one.outcomes[sequence.owner], one.at_s)

    def _answer_one(
        self, job: PrefillJob, outcome: SampledToken | TandemError | None, computed_s: float
    ) -> None:
        if isinstance(outcome, TandemError):
            self._end(job, outcome)
        elif outcome is None or job.started_s is None:
            job.fail(Internal("a whole prompt gave no token"))
        else:
            queue_s, prefill_s = job.started_s - job.arrived_s, computed_s - job.started_s
            job.first_token.set_result(PrefillResult(outcome, queue_s, prefill_s, computed_s))

    def _end(self, job: PrefillJob, fault: TandemError) -> None:
        """Fail a request and free its blocks."""
        self._scheduler.remove(job.sequence.owner)
        job.fail(fault)
