"""Passes over prompts: the time to launch, on the device, and through the prefill loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import torch

from bench.gpu.bench_engine import BenchEngine, bench_engine
from bench.gpu.model import BLOCK, spans
from bench.gpu.section import Row
from engine.kv.block_pool import BlockPool
from engine.model.packed_batch import pack
from engine.model.runner import whole
from engine.model.trials.device_timer import device_seconds
from engine.runtime.engine_thread import EngineWorker
from engine.scheduling.prompt_order import PromptOrder
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence
from prefill_pool.loop import PrefillLoop
from prefill_pool.scheduler import PrefillScheduler

TOKENS, DRY_TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192), (16, 64)
# Prompts that share a pass, and their tokens.
_TOGETHER, _EACH = 8, 64


def run(device: torch.device, dry: bool) -> Iterator[Row]:
    """Rows by tokens and prompts: `launch_ms`, `device_ms`, `loop_ms`; and the fitted pass."""
    made = bench_engine(device, dry)
    repeats = 2 if dry else 6
    shapes = [(1, tokens) for tokens in (DRY_TOKENS if dry else TOKENS)]
    for prompts, tokens in (*shapes, (_TOGETHER, _EACH // 4 if dry else _EACH)):
        loop_s = min(asyncio.run(through_loop(made, prompts, tokens)) for _ in range(repeats))
        yield {
            "prompts": prompts,
            "tokens": prompts * tokens,
            **_passes(made, device, prompts, tokens, repeats),
            "loop_ms": loop_s * 1e3,
            "tokens_s": prompts * tokens / loop_s,
        }
    timing = made.engine.pass_timing
    if timing is not None:
        yield {"warm_up_pass_ms": timing.pass_s * 1e3, "warm_up_token_us": timing.token_s * 1e6}


def _passes(
    made: BenchEngine, device: torch.device, prompts: int, tokens: int, repeats: int
) -> Row:
    engine, step = made.engine, spans(prompts, tokens, tokens, made.engine.cache)

    def forward() -> object:
        return whole(engine.runner.layers(pack(step, engine.cache)))

    launched = []
    with torch.inference_mode():
        forward()
        for _ in range(repeats):
            engine.cache.synchronize()
            began_s = time.perf_counter()
            forward()
            launched.append(time.perf_counter() - began_s)
        device_s = device_seconds(forward, device, repeats)
    return {"launch_ms": min(launched) * 1e3, "device_ms": device_s * 1e3}


async def through_loop(made: BenchEngine, prompts: int, tokens: int) -> float:
    """Seconds from the submission of the prompts to their last first token."""
    order = PromptOrder(max(prompts * tokens, 64), shared_cores=False)
    scheduler = PrefillScheduler(
        BlockPool(made.engine.cache.blocks),
        order,
        block_size=BLOCK,
        max_waiting=prompts,
        parked_fraction=1.0,
    )
    worker = EngineWorker(made.engine)
    loop = PrefillLoop(scheduler, worker)
    task = asyncio.create_task(loop.run())
    sampling = SamplingParams(temperature=0.0, max_tokens=2, seed=0)
    began_s = time.perf_counter()
    try:
        sequences = [Sequence(f"{n}", [n] * tokens, tokens, sampling) for n in range(prompts)]
        jobs = [loop.submit(one) for one in sequences]
        await asyncio.gather(*(job.first_token for job in jobs))
        return time.perf_counter() - began_s
    finally:
        task.cancel()
        await asyncio.wait({task})
        worker.close()
