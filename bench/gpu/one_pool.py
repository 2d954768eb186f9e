"""One pool in this process: the router's admission in front of a decode loop, with no network.

The replica has the role `both`. It reports its load as a replica does: at the end of a pass, and
every 50 ms.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence as Records
from dataclasses import dataclass, field
from typing import Any

from bench.gpu.bench_engine import BenchEngine
from bench.gpu.model import BLOCK
from cluster.admission.admission_queue import AdmissionQueue
from cluster.admission.assignment import Assignment, FirstTokenTiming
from cluster.admission.early_refusal import ArrivingRequest
from cluster.admission.refusals import Refused
from cluster.discovery.cold_start import ColdStarts
from cluster.placement.placement import Placement
from cluster.placement.types import PlacementRequest
from cluster.replica_record import Pool, ReplicaLoad, ReplicaRecord
from decode_pool.batch_size import BatchSize
from decode_pool.itl_budget import ItlBudget
from decode_pool.job import DecodeJob
from decode_pool.loop import DecodeLoop
from decode_pool.scheduler import DecodeScheduler
from engine.kv.block_pool import BlockPool
from engine.runtime.engine_thread import EngineWorker
from engine.scheduling.prompt_order import PromptOrder
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence

TTFT_S, ITL_S = 0.5, 0.06
_REPORT_S, _LEAST_REPORT_S = 0.05, 0.02
# Characters of a prompt's text for each of its tokens, as the router sees it before tokenising.
_CHARACTERS = 4


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The settings that a burst compares, named as in the configuration."""

    name: str
    chunk_tokens: int
    max_batch: int
    itl_factor: float | None


@dataclass(slots=True)
class BurstCounts:
    """What became of the requests of a burst."""

    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    ttfts_s: list[float] = field(default_factory=list)
    itls_s: list[float] = field(default_factory=list)

    @property
    def good(self) -> int:
        """Requests within both goals."""
        both = zip(self.ttfts_s, self.itls_s, strict=True)
        return sum(ttft_s <= TTFT_S and itl_s <= ITL_S for ttft_s, itl_s in both)


class _Pool:
    """The one replica, as `HealthyReplicas` gives it to the router."""

    def __init__(self, record: ReplicaRecord) -> None:
        self.starts = ColdStarts()
        self._record = record

    def healthy(self, pool: Pool) -> Records[ReplicaRecord]:
        """See HealthyReplicas."""
        return [self._record]

    def asleep(self, pools: Records[Pool]) -> tuple[Pool, ...]:
        """See HealthyReplicas."""
        return ()

    def stale(self) -> set[str]:
        """See HealthyReplicas."""
        return set()


class OnePool:
    """A decode loop over the engine, and a router's admission in front of it."""

    def __init__(self, made: BenchEngine, settings: PoolSettings) -> None:
        engine = made.engine
        self._made = made
        self._blocks = engine.cache.blocks
        self._order = PromptOrder(settings.chunk_tokens, shared_cores=False)
        if engine.pass_timing is not None:
            self._order.cost.start_with(engine.pass_timing)
        self.scheduler = DecodeScheduler(
            BlockPool(self._blocks),
            self._order,
            BatchSize(settings.max_batch, ITL_S),
            block_size=BLOCK,
            max_waiting=256,
            chunk_tokens=settings.chunk_tokens,
        )
        self.worker = EngineWorker(engine)
        itl = ItlBudget(ITL_S, settings.itl_factor)
        self.loop = DecodeLoop(self.scheduler, self.worker, settings.max_batch + 256, itl)
        self.placement = Placement(overcommit=4.0)
        limit = settings.max_batch
        load = ReplicaLoad(blocks_total=self._blocks, block_size=BLOCK, batch_limit=limit)
        pool: Any = _Pool(ReplicaRecord("one", "both", "", 1, load=load, device="device"))
        self.queue = AdmissionQueue(pool, self.placement, max_waiting=256)
        self.counts = BurstCounts()
        self.streams_seen = 0

    async def ask(self, number: int, prompt: int, answer: int) -> None:
        """A request from its arrival to its end, or to its refusal."""
        arrived_s = time.monotonic()
        request = PlacementRequest(
            prompt, prompt + answer, arrived_s=arrived_s, budget_s=TTFT_S, itl_s=ITL_S, key=number,
            size=_CHARACTERS * prompt,
        )  # fmt: skip
        arrival = ArrivingRequest(_CHARACTERS * prompt, arrived_s, TTFT_S, number, request.tenant)
        try:
            self.queue.refuse_early(arrival)
            (assignment,) = await self.queue.enter(request)
        except Refused as refused:
            self.counts.refused[str(getattr(refused, "reason", refused.code))] += 1
            return
        await self._serve(number, prompt, answer, assignment, arrived_s)

    async def report(self) -> None:
        """Report the load until cancelled, as a replica does."""
        while True:
            ended, loop, scheduler = self.loop.pass_ends.count, self.loop, self.scheduler
            passes = self._order.pass_costs
            load = ReplicaLoad(
                waiting=scheduler.waiting + loop.expected,
                running=scheduler.running,
                prompt_tokens_due=scheduler.tokens_due,
                blocks_promised=loop.blocks_promised,
                streams=scheduler.streams,
                step_s=loop.itl.step_s,
                pass_s=passes.timing.pass_s if passes else None,
                pass_token_s=passes.timing.token_s if passes else 0.0,
                shared_tokens=passes.shared_tokens if passes else 0,
                chunk_tokens=passes.chunk_tokens if passes else 0,
            )
            self.streams_seen = max(self.streams_seen, load.streams)
            self.placement.load_tracker.report("one", load, time.monotonic())
            self.placement.costs.report("one", load)
            await asyncio.sleep(_LEAST_REPORT_S)
            await loop.pass_ends.beyond(ended, _REPORT_S - _LEAST_REPORT_S)

    async def _serve(
        self, number: int, prompt: int, answer: int, assignment: Assignment, arrived_s: float
    ) -> None:
        sampling = SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True, seed=0)
        left_s = max(0.0, arrived_s + TTFT_S - time.monotonic())
        ids = [(number * 31 + place) % self._made.scale.vocabulary for place in range(prompt)]
        sequence = Sequence(
            f"{number}", ids, prompt, sampling, ttft_budget_s=left_s, urgency=assignment.urgency
        )
        job = DecodeJob(sequence, self._made.text(prompt, sampling), local=True)
        first_s: list[float] = []
        began_s = time.monotonic()

        def collect(due_s: float) -> None:
            if job.collect() is not None and not first_s:
                first_s.append(time.monotonic())
                took_s = (job.first_s or first_s[0]) - granted_s
                flush_s = first_s[0] - (job.first_s or first_s[0])
                ttft_s = first_s[0] - arrived_s
                known = FirstTokenTiming(took_s, 0, flush_s, ttft_s, sequence.passes)
                self.queue.computed(assignment, known)

        granted_s = began_s
        try:
            self.loop.register(job)
            await self.loop.admit(job)
            granted_s = time.monotonic()
            job.listen(collect)
            await job.drained
            ended_s = time.monotonic()
            self.counts.ttfts_s.append(first_s[0] - arrived_s)
            self.counts.itls_s.append((ended_s - first_s[0]) / max(1, answer - 1))
        except Exception as error:
            self.counts.failed[type(error).__name__] += 1
        finally:
            self.loop.release(job)
            self.queue.assigner.release(assignment, answer)


async def burst(
    made: BenchEngine, settings: PoolSettings, times_s: Records[float], prompt: int, answer: int
) -> OnePool:
    """The pool after requests that arrived at those times have all ended."""
    pool = OnePool(made, settings)
    helpers = [asyncio.create_task(work) for work in (pool.loop.run(), pool.report())]
    began_s = time.monotonic()

    async def one(number: int, at_s: float) -> None:
        await asyncio.sleep(max(0.0, began_s + at_s - time.monotonic()))
        await pool.ask(number, prompt, answer)

    try:
        await asyncio.gather(*(one(number, at_s) for number, at_s in enumerate(times_s)))
    finally:
        for helper in helpers:
            helper.cancel()
        await asyncio.wait(helpers)
        pool.worker.close()
    return pool
