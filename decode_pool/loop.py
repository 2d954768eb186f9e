"""The decode loop: form, grant, step, a slice of prompts, take, read, retire."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from decode_pool import metrics
from decode_pool.gap import ItlBudget
from decode_pool.job import DecodeJob
from decode_pool.scheduler import DecodeScheduler
from engine.errors import Internal, TandemError
from engine.loop_wakeup import LoopWakeup, StepEnds
from engine.metrics import PROMPT_TOKENS
from engine.runtime.engine_thread import EngineWorker, Slices
from engine.scheduling.prompt_queue import QueuePosition
from engine.types.lane_quota import require_room
from engine.types.sequence import Outcome, Sequence, Span, collected, urgency_of
from engine.types.urgency import Urgency

log = logging.getLogger(__name__)

_SLICES_PER_PASS = 16
_LEAST_PASS_TOKENS = 64


class DecodeLoop:
    """Steps the batch. `run` is the loop; the rest is called from servicers."""

    def __init__(
        self,
        scheduler: DecodeScheduler,
        worker: EngineWorker,
        max_jobs: int,
        gap: ItlBudget,
    ) -> None:
        self._scheduler = scheduler
        self.gap = gap
        self._step_s = 0.0
        self._stepped_s: float | None = None
        self._joined = False
        self._passes: list[Slices] = []
        self._max_jobs = max_jobs
        self._worker = worker
        self._jobs: dict[str, DecodeJob] = {}
        self._unread: list[DecodeJob] = []
        self.wake = LoopWakeup()
        self._ends = StepEnds(scheduler.leaving)

    def register(self, job: DecodeJob) -> None:
        """Take a request on, to be admitted when its KV is offered; PromptTooLong, Overloaded."""
        self._scheduler.check_fits(job.sequence)
        batch = job.sequence.lane == "batch"
        require_room(len(self._jobs), self._max_jobs, "requests are here", batch=batch)
        self._jobs[job.sequence.owner] = job
        self.wake.set()

    async def admit(self, job: DecodeJob) -> None:
        """Wait for blocks for all of the job's tokens; Overloaded if too many wait.

        A local job is computed by this alone, from its turn on; one that is taken up does not wait.
        """
        if job.taken_up:
            self._scheduler.take_up(job.sequence, time.monotonic())
            job.granted.set_result(None)
        elif job.local:
            self._scheduler.offer_prompt(job.sequence, time.monotonic())
        else:
            self._scheduler.offer(job.sequence, time.monotonic())
        job.offered = True
        self._tell(self._scheduler.grant())
        self.wake.set()
        await job.granted

    async def compute(self, job: DecodeJob) -> None:
        """Take a local job of one token to its end, for its KV alone, which stays in the cache."""
        self.register(job)
        try:
            await self.admit(job)
            job.listen(lambda due_s: _discard(job))
            await job.drained
        finally:
            self.release(job)

    def admit_early(self, job: DecodeJob) -> bool:
        """Blocks for a prompt that is still being computed elsewhere, if there are plenty."""
        granted = self._scheduler.grant_early(job.sequence)
        job.offered = job.offered or granted
        return granted

    def commit(self, job: DecodeJob) -> None:
        """The KV is here: the request joins the next step.

        Its stream's second token is on the way since prefill gave the first, so that step comes
        behind a layer of other work at most. One that may get many tokens beside urgent prompts
        joins when the step is due: one more for each that joins takes of their cores.
        """
        self._scheduler.commit(job.sequence.owner)
        self.wake.set()
        to_come = job.sequence.most_tokens - len(job.sequence.tokens)
        if self._worker.urgency is Urgency.URGENT and self.gap.bears_rest(to_come):
            return
        self._joined = True
        if self._passes:
            self._passes[-1].cut()

    @property
    def expected(self) -> int:
        """Requests whose KV was not offered yet."""
        return sum(not job.offered for job in self._jobs.values())

    @property
    def blocks_promised(self) -> int:
        """KV blocks that the requests here may come to need."""
        return sum(self._scheduler.most_blocks(job.sequence) for job in self._jobs.values())

    @property
    def batch_blocks(self) -> int:
        """Those of them that are for the batch lane."""
        sequences = (job.sequence for job in self._jobs.values())
        return sum(self._scheduler.most_blocks(one) for one in sequences if one.lane == "batch")

    def release(self, job: DecodeJob) -> None:
        """End a request in whatever state it is, and free its blocks. Idempotent."""
        self._jobs.pop(job.sequence.owner, None)
        self._scheduler.remove(job.sequence.owner)
        job.granted.cancel()
        self.wake.set()
        if self._passes and not self._scheduler.wanted(self._passes[-1].spans):
            self._passes[-1].halt()

    def places(self) -> dict[str, QueuePosition]:
        """Where the prompts that wait to be computed here are in their lines."""
        return self._scheduler.places(time.monotonic())

    async def vacated(self, job: DecodeJob) -> None:
        """Wait until no step writes to the blocks of this job, which was released."""
        await self._ends.vacated(job.sequence.owner)

    async def run(self) -> None:
        """Generate for ever: a step, then a slice of what is computed beside the steps.

        What either gave becomes text while the next one runs.
        """
        while True:
            self.wake.clear()
            await self._worker.scrub(self._scheduler.pool)
            due_s = self._scheduler.form_batch(time.monotonic())
            self._tell(self._scheduler.grant())
            rest_s = self._rest_s()
            stepped = rest_s is None and await self._step()
            if not await self._slice() and not stepped:
                self._read()
                self._worker.rest()
                waits = [seconds for seconds in (due_s, rest_s) if seconds is not None]
                await self.wake.wait(min(waits, default=None))

    def _rest_s(self) -> float | None:
        """How long the next step waits, so that others have the cores; None: not at all."""
        urgency = self._worker.urgency
        if self._joined or self._stepped_s is None or urgency is Urgency.NONE:
            return None
        since_s = time.monotonic() - (self._stepped_s - self._step_s)
        return self.gap.rest_s(since_s, urgency) or None

    async def _step(self) -> bool:
        """A token for each running request; False if there is none."""
        self._joined = False
        spans = self._scheduler.schedule()
        began = time.monotonic()
        if not spans:
            self._step_s, self._stepped_s = 0.0, None
            self.gap.rested()
            return False
        hastes = [self._worker.urgency]
        step = self._worker.step(spans)
        self._read()
        try:
            results = await step
        except Exception as error:
            self._fail(spans, error)
            return True
        hastes.append(self._worker.urgency)
        self._note_step(began, len(spans), disturbed=any(hastes))
        self._take(spans, results)
        return True

    def _note_step(self, began_s: float, requests: int, *, disturbed: bool) -> None:
        now, before_s = time.monotonic(), self._stepped_s
        self._step_s, self._stepped_s = now - began_s, now
        self.gap.stepped(self._step_s, disturbed=disturbed)
        self._scheduler.batch.stepped(requests, self._step_s)
        metrics.STEP_TIME.observe(self._step_s)
        metrics.BATCH.observe(requests)
        if before_s is not None:
            metrics.INTER_TOKEN_LATENCY.observe(now - before_s)

    async def _slice(self) -> bool:
        """Compute some of what is due beside the steps; False if there is nothing."""
        self._begin()
        if not self._passes:
            return False
        run, began_s = self._passes[-1], time.monotonic()
        slice_s = 0.0 if self._joined else self.gap.slice_s(urgency_of(run.spans))
        slice_ = self._worker.advance(run, slice_s)
        self._read()
        try:
            results = await slice_
        except Exception as error:
            self._passes.remove(run)
            self._fail(run.spans, error)
            return True
        self._scheduler.advanced(run.spans, self._step_s + time.monotonic() - began_s)
        if results is not None:
            self._passes.remove(run)
            PROMPT_TOKENS.inc(sum(span.count for span in run.spans), pool="decode")
            self._take(run.spans, results)
        return True

    def _begin(self) -> None:
        """Begin the next pass, or one that overtakes those under way, if there is one."""
        self._drop_unwanted()
        spans = self._scheduler.schedule_chunk(time.monotonic(), self._most_tokens())
        if spans:
            self._passes.append(self._worker.begin(spans))
            self._tell([span.sequence for span in spans])

    def _drop_unwanted(self) -> None:
        """Passes whose requests are all gone are not computed to their end."""
        for run in [run for run in self._passes if not self._scheduler.wanted(run.spans)]:
            self._passes.remove(run)
            self._scheduler.abandon(run.spans)
            self._ends.tell()

    def _most_tokens(self) -> int | None:
        """Prompt tokens of a pass whose layers are short beside a slice, so that a slice is used.

        None where that is not known yet.
        """
        tokens_per_s = self._scheduler.order.tokens_per_s
        if tokens_per_s is None:
            return None
        return max(_LEAST_PASS_TOKENS, int(_SLICES_PER_PASS * self.gap.slice_s() * tokens_per_s))

    def _tell(self, granted: list[Sequence]) -> None:
        for sequence in granted:
            job = self._jobs[sequence.owner]
            if not job.granted.done():
                job.granted.set_result(None)

    def _take(self, spans: list[Span], results: list[Outcome]) -> None:
        outcomes = {s.sequence.owner: collected(s, r) for s, r in zip(spans, results, strict=True)}
        self._condemn(outcomes)
        kept = self._scheduler.complete(spans)
        self._ends.tell()
        for span in kept:
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

    def _condemn(self, outcomes: Mapping[str, Outcome]) -> None:
        for owner, outcome in outcomes.items():
            if isinstance(outcome, Internal):
                self._scheduler.pool.condemn(owner)

    def _fail(self, spans: list[Span], error: Exception) -> None:
        """A step broke: its requests end with an error, the loop goes on."""
        log.exception("decode step failed, %d requests with it", len(spans))
        metrics.STEP_FAILURES.inc(1)
        fault = error if isinstance(error, TandemError) else Internal("a decode step failed")
        self._scheduler.abandon(spans)
        self._ends.tell()
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
        self.wake.set()
        if fault is not None:
            job.fail(fault)


def _discard(job: DecodeJob) -> None:
    job.collect()
