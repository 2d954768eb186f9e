"""Runs a replica at the edge of its KV pool for minutes, to find growing memory or lost blocks.

Requests of random lengths are computed from prompt to end by the decode pool's own scheduler and
loop, on a real engine, with more waiting requests than the pool can hold. So it preempts and evicts
all the time. `python -m bench.router.soak` prints and keeps what was measured.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.core.host_info import describe_machine
from bench.core.markdown_tables import table
from bench.core.results import RESULTS, Series, figure, keep, series_of
from cluster.api.event_streams import end
from cluster.config.schema import located
from cluster.work_progress import WorkProgress
from decode_pool.batch_size import BatchSize
from decode_pool.itl_budget import ItlBudget
from decode_pool.job import DecodeJob
from decode_pool.loop import DecodeLoop
from decode_pool.scheduler import DecodeScheduler
from engine.config import KvConfig, ModelConfig
from engine.kv.block_pool import BlockPool
from engine.kv.prefix_digest import identity_of
from engine.model_description import describe
from engine.runtime.engine import Engine
from engine.runtime.engine_thread import EngineWorker, engine_thread
from engine.scheduling.prompt_order import PromptOrder
from engine.text.completion import ChoiceText
from engine.text.tokenizer import Tokenizer
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence

_BLOCKS, _BLOCK_SIZE = 1500, 16
_CALLERS = 96
_MAX_BATCH = 64
_PROMPTS, _ANSWERS = (64, 700), (64, 300)
_PAGE_BYTES = 4096
_STEP_S = 2.0
_FULL, _FILL_S = 0.9, 60
_CHUNK, _ITL_S = 512, 0.06


@dataclass(slots=True)
class SoakSamples:
    """Samples of a run, one a second, and its sums."""

    occupied: list[float] = field(default_factory=list)
    rss_bytes: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    requests: int = 0
    preemptions: int = 0
    astray: int = 0

    def minutes(self) -> list[tuple[float, float, float]]:
        """Median occupancy, highest memory in MiB and tokens per second of each minute."""
        rows = []
        for start in range(0, len(self.occupied), 60):
            part = slice(start, start + 60)
            rows.append(
                (
                    statistics.median(self.occupied[part]),
                    max(self.rss_bytes[part]) / 2**20,
                    statistics.mean(self.tokens[part]),
                )
            )
        return rows


class Soak:
    """Callers that each send one request after the other to one decode loop."""

    def __init__(self, engine: Engine, worker: EngineWorker, tokenizer: Tokenizer) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._pool = BlockPool(engine.cache.blocks)
        self._scheduler = DecodeScheduler(
            self._pool,
            PromptOrder(_CHUNK),
            BatchSize(_MAX_BATCH, 1.0),
            block_size=_BLOCK_SIZE,
            max_waiting=_CALLERS,
            chunk_tokens=_CHUNK,
            identity=identity_of(engine.cache.layout),
        )
        self._loop = DecodeLoop(self._scheduler, worker, 2 * _CALLERS, ItlBudget(_ITL_S, None))
        self._random = random.Random(0)
        self._made = 0
        self.samples = SoakSamples()

    async def run(self, seconds: float) -> None:
        """Load the replica for `seconds`, let it end, and count the blocks that are left."""
        loop = asyncio.create_task(self._loop.run())
        callers = [asyncio.create_task(self._call(number)) for number in range(_CALLERS)]
        with WorkProgress("soak", seconds, "s") as progress:
            progress.at(0, "filling the pool")
            await self._fill()
            until = time.monotonic() + seconds
            while (now := time.monotonic()) < until:
                progress.at(now - until + seconds)
                await asyncio.sleep(1.0)
                self._sample()
        await end(callers)
        await asyncio.sleep(_STEP_S)  # a step under way keeps its blocks until it has ended
        await end([loop])
        self.samples.astray += self._pool.counts().used

    async def _fill(self) -> None:
        """Send requests until the pool is full, or the time is over."""
        for _ in range(_FILL_S):
            if self._pool.counts().used > _FULL * _BLOCKS:
                return
            await asyncio.sleep(1.0)

    def _sample(self) -> None:
        counts, samples = self._pool.counts(), self.samples
        samples.occupied.append(counts.used / counts.total)
        samples.rss_bytes.append(int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES)
        samples.tokens.append(self._made)
        self._made = 0
        samples.astray += self._pool.orphaned(self._scheduler.owners())

    async def _call(self, caller: int) -> None:
        number = 0
        while True:
            number += 1
            job = self._job(f"{caller}.{number}")
            self._loop.register(job)
            try:
                await self._loop.admit(job)
                job.listen(lambda due_s, job=job: self._collect(job))  # type: ignore[misc]
                await job.drained
                self.samples.requests += 1
                self.samples.preemptions += job.preemptions
            finally:
                self._loop.release(job)

    def _collect(self, job: DecodeJob) -> None:
        emission = job.collect()
        self._made += 0 if emission is None else len(emission.tokens)

    def _job(self, name: str) -> DecodeJob:
        description, draw = self._engine.description, self._random
        count = draw.randint(*_PROMPTS)
        ids = [draw.randrange(description.vocabulary) for _ in range(count)]
        sampling = SamplingParams(
            temperature=0.0, max_tokens=draw.randint(*_ANSWERS), ignore_eos=True, seed=0
        )
        completion = ChoiceText(
            self._tokenizer, ids, sampling, description.eos_ids, description.context_tokens
        )
        return DecodeJob(Sequence(name, ids, count, sampling), completion, local=True)


async def soak(model: ModelConfig, seconds: float) -> SoakSamples:
    """Load the model and soak it."""
    thread = engine_thread()
    description = describe(model)
    kv = KvConfig(block_size=_BLOCK_SIZE, blocks=_BLOCKS)

    def load() -> Engine:
        return Engine.load(description, kv, model, most_tokens=1)

    engine = await asyncio.get_running_loop().run_in_executor(thread, load)
    worker = EngineWorker(engine, thread)
    await worker.improve()
    run = Soak(engine, worker, Tokenizer.load(str(description.folder)))
    try:
        await run.run(seconds)
    finally:
        worker.close()
    return run.samples


def report(samples: SoakSamples) -> str:
    """The samples in Markdown."""
    rows = [
        (str(minute + 1), f"{occupied:.1%}", f"{rss:,.1f}", f"{rate:,.0f}")
        for minute, (occupied, rss, rate) in enumerate(samples.minutes())
    ]
    head = ("minute", "blocks in use, median", "memory at most, MiB", "tokens/s")
    return (
        f"{table(head, rows)}\n\n{samples.requests:,} requests, "
        f"{samples.preemptions:,} preemptions, {samples.astray} blocks astray.\n"
    )


def as_series(samples: SoakSamples, machine: dict[str, str]) -> Series:
    """The series of a run: figures by minute and in all."""
    minutes = samples.minutes()
    occupied, memory, rates = zip(*minutes, strict=True)
    figures = {
        "blocks in use": figure(occupied, "of 1", "minutes"),
        "memory": figure(memory, "MiB", "minutes"),
        "rate": figure(rates, "tokens/s", "minutes"),
        "requests": figure([samples.requests], "requests", "runs"),
        "preemptions": figure([samples.preemptions], "preemptions", "runs"),
        "blocks astray": figure([samples.astray], "blocks", "runs"),
    }
    return series_of("soak", machine, {"minutes": len(minutes)}, figures)


def main() -> None:
    """Soak, print, write."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    model = ModelConfig(path=located(options.model), dtype="bfloat16")
    samples = asyncio.run(soak(model, options.minutes * 60))
    keep(options.results, "soak", machine := describe_machine(), [as_series(samples, machine)])
    print(report(samples))


if __name__ == "__main__":
    main()
