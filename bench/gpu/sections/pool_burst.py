"""A burst on one pool in this process, with the default settings of a CPU and of a GPU."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from statistics import quantiles

import torch

from bench.gpu.bench_engine import bench_engine
from bench.gpu.one_pool import PoolSettings, burst
from bench.gpu.section import Row

SETTINGS = (
    PoolSettings("cpu", chunk_tokens=512, max_batch=64, itl_factor=2.0),
    PoolSettings("gpu", chunk_tokens=2048, max_batch=256, itl_factor=None),
)
_COUNT, _WITHIN_S, _PROMPT, _ANSWER = 300, 3.0, 544, 32
_DRY_COUNT, _DRY_WITHIN_S, _DRY_PROMPT, _DRY_ANSWER = 16, 0.3, 32, 4


def run(device: torch.device, dry: bool) -> Iterator[Row]:
    """A row for each settings: the requests within their goals, and refusals by reason."""
    made = bench_engine(device, dry)
    count, within_s, prompt, answer = (
        (_DRY_COUNT, _DRY_WITHIN_S, _DRY_PROMPT, _DRY_ANSWER)
        if dry
        else (_COUNT, _WITHIN_S, _PROMPT, _ANSWER)
    )
    chance = random.Random(0)
    times_s = sorted(chance.uniform(0, within_s) for _ in range(count))
    for settings in SETTINGS:
        # A first small burst brings the loop's own kernels and the forecasts to their usual state.
        asyncio.run(burst(made, settings, times_s[:4], prompt, answer))
        began_s = time.monotonic()
        pool = asyncio.run(burst(made, settings, times_s, prompt, answer))
        found, took_s = pool.counts, time.monotonic() - began_s
        yield {
            "settings": settings.name,
            "requests": count,
            "good": found.good,
            "served": len(found.ttfts_s),
            "refused": dict(sorted(found.refused.items())),
            "failed": dict(sorted(found.failed.items())),
            "prompt_tokens_s": len(found.ttfts_s) * prompt / took_s,
            "most_streams": pool.streams_seen,
            "passes": pool.loop.pass_ends.count,
            "ttft_p95_ms": _p95(found.ttfts_s) * 1e3,
            "itl_p95_ms": _p95(found.itls_s) * 1e3,
        }


def _p95(values: list[float]) -> float:
    return quantiles(values, n=20)[-1] if len(values) > 1 else sum(values)
