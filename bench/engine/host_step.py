"""`make bench-host`: the host's work for a decode step, beside a device on paper.

The device takes the same time for each step, so what it waits is the host's. The stages are those
of the decode loop: *schedule*, *submit* to the engine's thread, *fill* of the device's buffers,
*retire* with the results of a step, and *read*, which makes text of them and sends it. *Processor*
is the time of all threads for a step. *Idle* is the time from the end of a step to the launch of
the next one. *Pack* and *fill* of a batch with long contexts are measured alone, too.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from bench.core.host_info import as_line, describe_machine
from bench.core.markdown_tables import table
from bench.core.results import RESULTS, Figure, Series, figure, keep, series_of
from bench.engine.paper_device import PaperDevice, StageClock
from cluster.api.event_streams import end
from cluster.config.schema import located
from cluster.work_progress import tracked
from decode_pool.batch_size import BatchSize
from decode_pool.itl_budget import ItlBudget
from decode_pool.job import DecodeJob
from decode_pool.loop import DecodeLoop
from decode_pool.scheduler import DecodeScheduler
from decode_pool.step_tally import StepCount
from engine.config import ModelConfig
from engine.kv.block_pool import BlockPool
from engine.kv.cache import KvCache
from engine.kv.layout import KvLayout, LayerShape
from engine.model.cuda_graphs import StaticBatch
from engine.model.packed_batch import pack
from engine.model_description import describe
from engine.runtime.engine_thread import EngineWorker
from engine.runtime.step_launch import StepLaunch
from engine.scheduling.prompt_order import PromptOrder
from engine.text.completion import ChoiceText
from engine.text.tokenizer import Tokenizer
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Outcome, Sequence, Span

STREAMS = (1, 8, 32, 64)
BLOCK_SIZE, CHUNK = 16, 512
LONG_ROWS, LONG_CONTEXT = 64, 8192
STAGES = ("schedule", "submit", "fill", "retire", "read")
TEXT = "The host makes text of the tokens of a café's guests while the device computes more. "


@dataclass(frozen=True, slots=True)
class HostRow:
    """One run: microseconds of a step by stage, of all threads, and of the device's idle time."""

    streams: int
    ahead: bool
    stages: dict[str, float]
    processor: float
    idle: float
    step: float

    @property
    def name(self) -> str:
        """The name of the run's figures."""
        return f"{self.streams} streams, {'ahead' if self.ahead else 'in turn'}"


class TimedScheduler(DecodeScheduler):
    """A scheduler that times its steps."""

    clock: StageClock

    def schedule(self) -> list[Span]:
        """See DecodeScheduler."""
        with self.clock.stage("schedule"):
            return super().schedule()

    def schedule_ahead(self, spans: list[Span], most_rows: int) -> list[Span]:
        """See DecodeScheduler."""
        with self.clock.stage("schedule"):
            return super().schedule_ahead(spans, most_rows)


class TimedWorker(EngineWorker):
    """A worker that times what it takes to give the engine's thread a step."""

    clock: StageClock

    def step(self, spans: list[Span]) -> Awaitable[list[Outcome]]:
        """See EngineWorker."""
        with self.clock.stage("submit"):
            return super().step(spans)

    def launch(self, spans: list[Span]) -> StepLaunch:
        """See EngineWorker."""
        with self.clock.stage("submit"):
            return super().launch(spans)

    def results(self, launch: StepLaunch) -> Awaitable[list[Outcome]]:
        """See EngineWorker."""
        with self.clock.stage("submit"):
            return super().results(launch)


class TimedLoop(DecodeLoop):
    """A loop that times what it does with the results of steps."""

    clock: StageClock

    def _retire(self, spans: list[Span], results: list[Outcome], before: StepCount) -> None:
        with self.clock.stage("retire"):
            super()._retire(spans, results, before)

    def _emit(self) -> None:
        with self.clock.stage("read"):
            super()._emit()


class HostBench:
    """Streams on a decode loop over a device on paper."""

    def __init__(self, model: str, step_s: float) -> None:
        self._description = describe(ModelConfig(path=located(model)))
        self._tokenizer = Tokenizer.load(str(self._description.folder))
        self._step_s = step_s

    async def run(self, streams: int, steps: int, *, ahead: bool) -> HostRow:
        """Let so many streams have a token in each of so many steps."""
        clock, prompt = StageClock(), 1024
        width = -(-(prompt + steps + 2) // BLOCK_SIZE)
        cache = paper_cache(streams * (width + 2))
        tokens = self._tokenizer.encode(TEXT)
        device = PaperDevice(cache, max(STREAMS), width, self._step_s, tokens, clock)
        if not ahead:
            device.rows_ahead = 0
        scheduler = TimedScheduler(
            BlockPool(cache.blocks),
            PromptOrder(CHUNK),
            BatchSize(streams, 1.0),
            block_size=BLOCK_SIZE,
            max_waiting=streams,
            chunk_tokens=CHUNK,
        )
        scheduler.clock = clock
        worker = TimedWorker(device)
        loop = TimedLoop(scheduler, worker, 2 * streams, ItlBudget(1.0, None))
        worker.clock = loop.clock = clock
        jobs = [self._job(f"{number}", prompt, steps) for number in range(streams)]
        began_s = time.process_time()
        task = asyncio.create_task(loop.run())
        await asyncio.gather(*(_stream(loop, job) for job in jobs))
        await end([task])
        worker.close()
        processor_s = time.process_time() - began_s
        made = max(1, len(device.idle_s))
        stages = {name: clock.per_step(name, made) * 1e6 for name in STAGES}
        idle = median(device.idle_s[2:] or device.idle_s)
        return HostRow(
            streams, ahead, stages, processor_s / made * 1e6, idle * 1e6, self._step_s * 1e6
        )

    def _job(self, name: str, prompt: int, steps: int) -> DecodeJob:
        ids = [token % self._description.vocabulary for token in range(prompt)]
        sampling = SamplingParams(max_tokens=steps + 1, ignore_eos=True, seed=0)
        text = ChoiceText(self._tokenizer, ids, sampling, (), prompt + steps + 2)
        return DecodeJob(Sequence(name, ids, prompt, sampling), text)


async def _stream(loop: DecodeLoop, job: DecodeJob) -> None:
    """One stream whose KV came from elsewhere, to its end."""
    loop.register(job)
    job.take_first(job.sequence.tokens[-1])
    await loop.admit(job)
    loop.commit(job)
    job.listen(lambda due_s: _collect(job))
    await job.drained
    loop.release(job)


def _collect(job: DecodeJob) -> None:
    job.collect()


def paper_cache(blocks: int) -> KvCache:
    """A cache of the smallest possible blocks."""
    layout = KvLayout((LayerShape(1, 1),), BLOCK_SIZE, "float32", "paper")
    return KvCache(layout, blocks, torch.device("cpu"))


def pack_and_fill(rows: int, context: int, rounds: int) -> dict[str, float]:
    """Median microseconds to pack, and to fill the buffers with, a step of long contexts."""
    width = context // BLOCK_SIZE + rounds // BLOCK_SIZE + 2
    cache = paper_cache(rows * width)
    sampling = SamplingParams(temperature=0.0, max_tokens=2 * rounds)
    sequences = []
    for row in range(rows):
        # Lengths differ, so that in each step some of the rows get a new block.
        length = context - row
        one = Sequence(f"{row}", [1] * length, length, sampling)
        one.blocks = list(range(row * width, row * width - (-length // BLOCK_SIZE)))
        sequences.append(one)
    static = StaticBatch(cache, rows, width)
    works: dict[str, Callable[[list[Span]], object]] = {
        "pack": lambda spans: pack(spans, cache),
        "fill": static.fill,
    }
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for row, one in enumerate(sequences):
            one.tokens.append(1)
            if len(one.tokens) > BLOCK_SIZE * len(one.blocks):
                one.blocks = [*one.blocks, row * width + len(one.blocks)]
        spans = [Span(one, len(one.tokens) - 1, 1) for one in sequences]
        for name, work in works.items():
            began_s = time.perf_counter()
            work(spans)
            taken[name].append((time.perf_counter() - began_s) * 1e6)
    return {name: median(values) for name, values in taken.items()}


def as_series(
    rows: list[HostRow], arrays: list[dict[str, float]], machine: dict[str, str], step_ms: float
) -> Series:
    """The series of all runs; repeats of a run have one name."""
    figures: dict[str, Figure | None] = {}
    for name in dict.fromkeys(row.name for row in rows):
        runs = [row for row in rows if row.name == name]
        figures[f"{name}: idle"] = figure([row.idle for row in runs], "us", "runs")
        figures[f"{name}: processor"] = figure([row.processor for row in runs], "us", "runs")
        stages = [sum(row.stages.values()) for row in runs]
        figures[f"{name}: all stages"] = figure(stages, "us", "runs")
        for stage in STAGES:
            figures[f"{name}: {stage}"] = figure([one.stages[stage] for one in runs], "us", "runs")
    for name in ("pack", "fill"):
        title = f"{name} of {LONG_ROWS} rows at {LONG_CONTEXT:,} tokens"
        figures[title] = figure([one[name] for one in arrays], "us", "runs")
    return series_of("host", machine, {"step_ms": step_ms}, figures)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    bench = HostBench(options.model, options.step_ms / 1e3)
    rows, arrays = [], []
    for _ in tracked("host", range(options.repeats)):
        arrays.append(pack_and_fill(LONG_ROWS, LONG_CONTEXT, 64))
        runs = [(streams, ahead) for streams in STREAMS for ahead in (False, True)]
        rows += [asyncio.run(bench.run(n, options.steps, ahead=ahead)) for n, ahead in runs]
    machine = describe_machine()
    series = as_series(rows, arrays, machine, options.step_ms)
    keep(options.results, "host", machine, [series])
    cells = [(name, f"{one.value:,.0f}", one.unit) for name, one in series.figures.items()]
    print(table(("figure", "median", "unit"), cells))
    print(as_line(machine))


if __name__ == "__main__":
    main()
