"""The decode loop: admit committed requests, schedule, forward, emit, retire."""

from __future__ import annotations

import time

from decode_pool import metrics
from decode_pool.itl_budget import ItlBudget
from decode_pool.job import DecodeJob
from decode_pool.pass_size import PassSize
from decode_pool.recompute_share import RecomputeShare
from decode_pool.scheduler import DecodeScheduler
from decode_pool.shared_cores import StepInterval
from decode_pool.step_clock import StepClock
from decode_pool.step_pipeline import DecodeStep, StepPipeline
from decode_pool.step_tally import StepCount, count_recomputed
from engine.errors import TandemError
from engine.metrics import PROMPT_TOKENS
from engine.runtime.engine_thread import EngineWorker
from engine.runtime.pool_loop import PoolLoop
from engine.types.lane_quota import require_capacity
from engine.types.sequence import Outcome, Sequence, Span, urgency_of
from engine.types.urgency import Urgency


class DecodeLoop(PoolLoop[DecodeJob]):
    """Steps the batch. `run` is the loop; servicers call the other public methods.

    At most `max_jobs` requests are here at once. `itl` bounds steps and slices. With `mixes` the
    streams' tokens ride in the passes of prompts, where the budget allows it.
    """

    _scheduler: DecodeScheduler

    def __init__(
        self,
        scheduler: DecodeScheduler,
        worker: EngineWorker,
        max_jobs: int,
        itl: ItlBudget,
        *,
        mixes: bool = False,
    ) -> None:
        super().__init__("decode", scheduler, worker, metrics.STEP_FAILURES)
        self.itl = itl
        self._sizes = PassSize(itl, scheduler.order, mixes=mixes)
        self._recompute = RecomputeShare()
        self._step_interval = StepInterval(itl) if worker.shared_cores else None
        self._clock = StepClock(itl, self._recompute, scheduler.batch, self._step_interval)
        self._joined, self._max_jobs = False, max_jobs
        self._unread: list[DecodeJob] = []
        self._steps = StepPipeline(scheduler, worker, lambda: time.monotonic())

    def register(self, job: DecodeJob) -> None:
        """Register a request, which `admit` admits later; raises PromptTooLong or Overloaded."""
        self._scheduler.check_feasible(job.sequence)
        batch = job.sequence.lane == "batch"
        require_capacity(len(self._jobs), self._max_jobs, "requests are here", batch=batch)
        self._jobs[job.sequence.owner] = job
        self.wakeup.set()

    async def admit(self, job: DecodeJob) -> None:
        """Wait for blocks for all of the job's tokens; Overloaded if too many requests wait.

        A local job starts with this, as soon as its prompt is the next. A job that failed over
        from another replica does not wait.
        """
        if job.failed_over:
            self._scheduler.take_over(job.sequence, time.monotonic())
            self._end_prompt_slice()
            job.granted.set_result(None)
        elif job.local:
            self._scheduler.offer_prompt(job.sequence, time.monotonic())
        else:
            self._scheduler.offer(job.sequence, time.monotonic())
        job.offered = True
        self._tell_granted(self._scheduler.grant())
        self.wakeup.set()
        await job.granted
        job.waited_for = self._scheduler.waited_for(job.sequence.owner)

    def release(self, job: DecodeJob) -> None:
        """As `PoolLoop.release`; a request that was cancelled may have been preempted."""
        self._count_preemptions(job)
        super().release(job)

    async def compute(self, job: DecodeJob) -> None:
        """Compute a local job of one token for its KV alone, which stays in the cache."""
        self.register(job)
        try:
            await self.admit(job)
            job.listen(lambda due_s: _discard(job))
            await job.drained
        finally:
            self.release(job)

    def admit_early(self, job: DecodeJob) -> bool:
        """Give blocks to a prompt that is still computed elsewhere; False if blocks are scarce."""
        granted = self._scheduler.grant_early(job.sequence)
        job.offered = job.offered or granted
        return granted

    def commit(self, job: DecodeJob) -> None:
        """Let a request whose KV has arrived join the next step.

        The step comes after at most one layer of prompts, because the stream has had its first
        token from prefill and waits for the second. On shared cores, beside urgent prompts, a
        stream with many tokens to come joins when the step is due.
        """
        self._scheduler.commit(job.sequence.owner)
        self.wakeup.set()
        if self._step_interval is not None and self._worker.urgency is Urgency.URGENT:
            to_come = job.sequence.most_tokens - len(job.sequence.tokens)
            if self._step_interval.may_wait(to_come):
                return
        self._joined = True
        self._end_prompt_slice()

    @property
    def expected(self) -> int:
        """The number of requests whose KV was not offered yet."""
        return sum(not job.offered for job in self._jobs.values())

    @property
    def blocks_promised(self) -> int:
        """The number of KV blocks that the requests here may come to need."""
        return sum(self._scheduler.most_blocks(job.sequence) for job in self._jobs.values())

    @property
    def batch_blocks(self) -> int:
        """The part of `blocks_promised` that belongs to the batch lane."""
        sequences = (job.sequence for job in self._jobs.values())
        return sum(self._scheduler.most_blocks(one) for one in sequences if one.lane == "batch")

    async def run(self) -> None:
        """Generate for ever: admit, compute a step, then passes beside the steps.

        A step is: schedule, forward, emit the results of the step before, retire.
        """
        while True:
            await self._begin_round()
            batch_due_s = self._admit_waiting()
            step_due_s = None if self._joined else self._clock.wait_s(self._worker.urgency)
            step = await self._step() if step_due_s is None else None
            if self._steps.is_ahead or (step is not None and step.prompts):
                continue  # prompts wait until no step is under way, or had their part of it
            if not await self._compute_passes(stepped=step is not None) and step is None:
                self._emit()
                self._worker.yield_cores()
                due_s = [seconds for seconds in (batch_due_s, step_due_s) if seconds is not None]
                await self.wakeup.wait(min(due_s, default=None))

    def _admit_waiting(self) -> float | None:
        """Admit requests while blocks last; the seconds until a batch is due by time, or None."""
        batch_due_s = self._scheduler.form_batch(time.monotonic())
        self._tell_granted(self._scheduler.grant())
        return batch_due_s

    async def _step(self) -> DecodeStep | None:
        """Compute a token for each running request; None if no request runs."""
        self._joined = False
        step = self._steps.next(self._sizes.mixed)
        if step is None:
            self._clock.idle()
            return None
        disturbed = bool(self._worker.urgency)
        results = self._steps.go_ahead(step)
        self._tell_granted([span.sequence for span in step.spans[: step.prompts]])
        self._emit()
        try:
            computed = await results
        except Exception as error:
            self._fail(step.spans, error)
            return step
        disturbed = bool(self._worker.urgency) or disturbed
        before = self._clock.ended(step, self._jobs, disturbed=disturbed)
        if step.prompts:
            took_s, alone_s = time.monotonic() - step.began_s, self._clock.prompts_s
            self._scheduler.advanced(step.spans, took_s, alone_s)
            PROMPT_TOKENS.inc(sum(s.count for s in step.spans[: step.prompts]), pool="decode")
            self.pass_ends.tell()
        self._retire(step.spans, computed, before)
        return step

    async def _compute_passes(self, *, stepped: bool) -> bool:
        """Compute a slice, and passes behind it while the budget lasts; False if none waits."""
        began_s, used_s, computed = time.monotonic(), 0.0, False
        mixes = stepped and self._sizes.mixed > 0
        while (ended := await self._slice(used_s, mixes=mixes)) is not None:
            computed, used_s = True, time.monotonic() - began_s
            if self._joined or not (ended and self._sizes.may_follow(used_s)):
                break
        return computed

    async def _slice(self, used_s: float, *, mixes: bool) -> bool | None:
        """Compute a slice of the newest pass; None if there is none, True if it has ended.

        Slices since the last step took `used_s` seconds of what it left. Prompts that come now
        wait for the next step where it `mixes`.
        """
        self._begin_pass(mixes=mixes)
        if not self._scheduler.recomputing:
            self._recompute.idle()
        if not self._passes:
            return None
        run, began_s = self._passes[-1], time.monotonic()
        # A stream that stands still is as urgent as an urgent prompt.
        again = self._scheduler.recomputing
        urgency = Urgency.URGENT if again else urgency_of(run.spans)
        slice_s = 0.0 if self._joined else self.itl.slice_s(urgency) - used_s
        slice_ = self._worker.advance(run, max(0.0, slice_s, self._recompute.slice_s))
        self._emit()
        try:
            results = await slice_
        except Exception as error:
            self._passes.remove(run)
            self._fail(run.spans, error)
            return False
        took_s = time.monotonic() - began_s
        self._recompute.computed(took_s)
        beside_s = 0.0 if used_s else self._clock.step_s
        self._scheduler.advanced(run.spans, took_s + beside_s, alone_s=took_s)
        if results is not None:
            self._passes.remove(run)
            PROMPT_TOKENS.inc(sum(span.count for span in run.spans), pool="decode")
            self.pass_ends.tell()
            count_recomputed(run.spans, self._jobs, self._scheduler.preemptions)
            self._retire(run.spans, results, self._clock.tally.count)
        return results is not None

    def _end_prompt_slice(self) -> None:
        """End a slice of prompts with its layer; a slice of streams that stand still goes on."""
        if not self._scheduler.recomputing:
            self._cut_slice()

    def _begin_pass(self, *, mixes: bool) -> None:
        """Begin the next pass, or a pass that overtakes the others, if there is one."""
        self._drop_unwanted()
        spans = self._scheduler.schedule_chunk(time.monotonic(), self._sizes.sliced, mixes=mixes)
        if spans and self._begin_with(spans):
            self._tell_granted([span.sequence for span in spans])

    def _tell_granted(self, granted: list[Sequence]) -> None:
        for sequence in granted:
            job = self._jobs[sequence.owner]
            if not job.granted.done():
                job.granted.set_result(None)

    def _retire(self, spans: list[Span], results: list[Outcome], before: StepCount) -> None:
        """Give requests their tokens; retire the ended. `before`: the steps before these spans."""
        outcomes = self._collect(spans, results)
        kept = self._scheduler.complete(spans)
        self._ends.tell()
        ahead, after = self._steps.is_ahead, self._clock.tally.count
        for span in kept:
            owner = span.sequence.owner
            job, outcome = self._jobs[owner], outcomes[owner]
            if outcome is None or isinstance(outcome, TandemError):
                if outcome is not None:
                    self._end(job, outcome)
                continue
            if job.stepped_to is not before:
                job.begin_steps(before if job.sequence.output_tokens else after)
            job.stepped_to = after
            job.take(outcome)
            self._unread.append(job)
            if ahead:
                job.read_stops()
            if job.finished:
                self._end(job)

    def _emit(self) -> None:
        """Make text of the last results, and send it; retire requests whose text has ended."""
        metrics.TOKENS.inc(len(self._unread))
        for job in self._unread:
            ended = job.finished
            job.read()
            if job.finished and not ended and self._jobs.get(job.sequence.owner) is job:
                self._end(job)
        self._unread.clear()

    def _end(self, job: DecodeJob, fault: TandemError | None = None) -> None:
        """Retire a request, or fail it; its blocks are free for the next step."""
        owner = job.sequence.owner
        job.end_steps()
        self._count_preemptions(job)
        self._scheduler.remove(owner)
        self.wakeup.set()
        if fault is not None:
            job.fail(fault)

    def _count_preemptions(self, job: DecodeJob) -> None:
        """Count those of a request that leaves the scheduler now, if it is still there."""
        count = self._scheduler.preemptions(job.sequence.owner) or 0
        job.preemptions += count
        metrics.PREEMPTIONS.inc(count)


def _discard(job: DecodeJob) -> None:
    job.collect()
