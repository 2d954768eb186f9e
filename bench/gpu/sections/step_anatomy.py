"""A decode step: on the device alone, with each sampler, and through the decode loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median

import torch

from bench.gpu.bench_engine import BenchEngine, bench_engine
from bench.gpu.model import BLOCK, spans
from bench.gpu.section import Row
from decode_pool.batch_size import BatchSize
from decode_pool.itl_budget import ItlBudget
from decode_pool.job import DecodeJob
from decode_pool.loop import DecodeLoop
from decode_pool.scheduler import DecodeScheduler
from engine.kv.block_pool import BlockPool
from engine.model.packed_batch import pack
from engine.model.runner import whole
from engine.model.trials.device_timer import device_seconds, host_seconds
from engine.runtime.engine_thread import EngineWorker
from engine.scheduling.prompt_order import PromptOrder
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence, Span

STREAMS, DRY_STREAMS = (1, 8, 32, 64), (1, 2)
_CONTEXT, _STEPS, _DRY_STEPS = 1024, 100, 6
_GREEDY = SamplingParams(temperature=0.0, seed=0)
SAMPLERS = {
    "greedy": _GREEDY,
    "temperature": SamplingParams(temperature=0.8, seed=0),
    "top_p": SamplingParams(temperature=0.8, top_p=0.9, seed=0),
    "top_k, top_p": SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=0),
    "top_p, presence": SamplingParams(temperature=0.8, top_p=0.9, presence_penalty=0.5, seed=0),
}


def run(device: torch.device, dry: bool) -> Iterator[Row]:
    """Rows by streams: `device`, `sampled` with each sampler, and `loop`."""
    made = bench_engine(device, dry)
    context = min(_CONTEXT, max(made.scale.contexts) // 2)
    for streams in DRY_STREAMS if dry else STREAMS:
        step = spans(streams, context, 1, made.engine.cache)
        launch = _forward(made, step)
        with torch.inference_mode():
            yield {
                "streams": streams,
                "part": "device",
                "ms": _ms(device_seconds(launch, device, 20)),
            }
        for name, params in SAMPLERS.items():
            for place, span in enumerate(step):
                span.sequence.sampling = params
                span.sequence.tokens[-1] = place % made.scale.vocabulary
            seconds = host_seconds(lambda step=step: made.engine.forward(step), 3 if dry else 20)  # type: ignore[misc]
            yield {"streams": streams, "part": "sampled", "sampler": name, "ms": _ms(seconds)}
        _mix(step)
        seconds = host_seconds(lambda step=step: made.engine.forward(step), 3 if dry else 20)  # type: ignore[misc]
        yield {"streams": streams, "part": "sampled", "sampler": "mixed", "ms": _ms(seconds)}
        for name in ("greedy", "top_p"):
            steps = _DRY_STEPS if dry else _STEPS
            took_s = asyncio.run(through_loop(made, streams, context, steps, SAMPLERS[name]))
            yield {"streams": streams, "part": "loop", "sampler": name, "ms": _ms(took_s)}


def _forward(made: BenchEngine, step: list[Span]) -> Callable[[], object]:
    """The logits of a step; recorded where the device can."""
    replays, cache, runner = made.engine.runner.replays, made.engine.cache, made.engine.runner
    if replays is None:
        return lambda: whole(runner.layers(pack(step, cache)))
    return lambda: replays.logits(step)


def _mix(step: list[Span]) -> None:
    every = list(SAMPLERS.values())
    for place, span in enumerate(step):
        span.sequence.sampling = every[place % len(every)]


def _ms(seconds: float) -> float:
    return seconds * 1e3


async def through_loop(
    made: BenchEngine, streams: int, context: int, steps: int, params: SamplingParams
) -> float:
    """Median seconds from one step to the next of a decode loop with so many streams."""
    scheduler = DecodeScheduler(
        BlockPool(made.engine.cache.blocks),
        PromptOrder(2048, shared_cores=False),
        BatchSize(streams, 1.0),
        block_size=BLOCK,
        max_waiting=streams,
        chunk_tokens=2048,
    )
    worker = EngineWorker(made.engine)
    loop = DecodeLoop(scheduler, worker, 2 * streams, ItlBudget(1.0, None))
    task = asyncio.create_task(loop.run())
    try:
        jobs = [_job(made, f"{n}", context, steps, params) for n in range(streams)]
        times = await asyncio.gather(*(_stream(loop, job) for job in jobs))
    finally:
        task.cancel()
        await asyncio.wait({task})
        worker.close()
    first = times[0]
    return median(after - before for before, after in pairwise(first))


def _job(
    made: BenchEngine, name: str, context: int, steps: int, params: SamplingParams
) -> DecodeJob:
    values = {key: getattr(params, key) for key in ("temperature", "top_p", "top_k", "seed")}
    sampling = SamplingParams(max_tokens=steps + 1, ignore_eos=True, **values)
    ids = [token % made.scale.vocabulary for token in range(context)]
    return DecodeJob(Sequence(name, ids, context, sampling), made.text(context, sampling))


async def _stream(loop: DecodeLoop, job: DecodeJob) -> list[float]:
    """One stream whose KV came from elsewhere, to its end; the time of each of its tokens."""
    times: list[float] = []

    def collect(due_s: float) -> None:
        if job.collect() is not None:
            times.append(time.perf_counter())

    loop.register(job)
    job.take_first(1)
    await loop.admit(job)
    loop.commit(job)
    job.listen(collect)
    await job.drained
    loop.release(job)
    return times
