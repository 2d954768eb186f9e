"""The soak itself: it fills the pool, and leaves nothing behind."""

from __future__ import annotations

import asyncio

from bench.router.soak import SoakSamples, as_series, report, soak
from cluster.config.schema import located
from engine.config import ModelConfig


def test_a_short_one_fills_the_pool_and_leaves_nothing():
    samples = asyncio.run(soak(ModelConfig(path=located("demo"), dtype="bfloat16"), 4.0))
    assert samples.astray == 0
    assert samples.requests > 0
    assert max(samples.occupied) > 0.8
    assert "0 blocks astray" in report(samples)
    kept = as_series(samples, {"commit": "c", "date": "2026-01-02"}).figures
    assert kept["requests"].value == samples.requests


def test_minutes_are_summed_up_each_by_itself():
    samples = SoakSamples(
        occupied=[0.5] * 60 + [1.0], rss_bytes=[2**20] * 60 + [2**21], tokens=[7] * 61
    )
    assert samples.minutes() == [(0.5, 1.0, 7), (1.0, 2.0, 7)]
