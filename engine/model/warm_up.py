"""Computes batches of all kinds once, so that no request waits for kernels to compile.

When all kernels are compiled, two passes are timed. Forecasts start from their times.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import torch

from engine.errors import first_line
from engine.kv.cache import KvCache
from engine.model.packed_batch import pack
from engine.model.runner import Runner, whole
from engine.scheduling.pass_cost import PassTiming
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence, Span

log = logging.getLogger(__name__)

# Bounds: kernels are compiled for tiles, which depend on a prompt's length, and for the parts of a
# stream's context. Each length in tokens here compiles some.
_PROMPTS = (1, 4, 7, 16, 24, 48, 100, 300, 1024, 2048)
_STREAMS = (48, 200, 400, 800, 1600, 3500, 7000)
_BESIDE_TOKENS = 100
# Numerics: the timed passes in tokens, and how often each is computed; the fastest one counts.
_TIMED_SHORT, _TIMED_RUNS = 16, 3


def compute_once(runner: Runner, cache: KvCache, context_tokens: int) -> Iterator[None]:
    """Compute prompts of many lengths, and a prompt beside streams of many contexts, one by one.

    Their KV goes to the scratch block. A batch that cannot be computed is logged.
    """
    batches = kinds_of_batches(context_tokens)
    began_s = time.monotonic()
    for batch in batches:
        try:
            _compute(runner, cache, [_span(cache, start, count) for start, count in batch])
        except Exception as error:  # any error of a compiler; a request may never need this batch
            log.warning("a first batch failed: %s", first_line(error))
        yield
    log.info("%d kinds of batches computed in %.1f s", len(batches), time.monotonic() - began_s)


def kinds_of_batches(context_tokens: int) -> list[list[tuple[int, int]]]:
    """The batches of `compute_once`: of each sequence the first token and how many, in tokens."""
    batches = [[(0, length)] for length in _PROMPTS if length <= context_tokens]
    if context_tokens >= _BESIDE_TOKENS:
        streams = [length for length in _STREAMS if length < context_tokens]
        batches += [[(length, 1), (0, _BESIDE_TOKENS)] for length in streams]
    return batches


def compute_longest(runner: Runner, cache: KvCache, context_tokens: int) -> None:
    """Compute the longest of those prompts; its KV goes to the scratch block."""
    _compute(runner, cache, [_span(cache, 0, min(_PROMPTS[-1], context_tokens))])


def time_passes(runner: Runner, cache: KvCache, context_tokens: int) -> PassTiming | None:
    """The timing of passes over prompts; None where no pass can be computed."""
    longest = min(_PROMPTS[-1], context_tokens)
    if longest <= _TIMED_SHORT:
        return None
    try:
        short, long = (
            (tokens, _fastest_s(runner, cache, [_span(cache, 0, tokens)]))
            for tokens in (_TIMED_SHORT, longest)
        )
    except Exception as error:  # any error of a device; forecasts can start from a guess
        log.warning("passes could not be timed: %s", first_line(error))
        return None
    timing = PassTiming.of_two(short, long)
    log.info("a pass takes %.4f s and %.7f s a token", timing.pass_s, timing.token_s)
    return timing


def _fastest_s(runner: Runner, cache: KvCache, spans: list[Span]) -> float:
    """The least seconds of a pass over the spans, after one that does not count."""
    times = []
    for _ in range(1 + _TIMED_RUNS):
        began_s = time.perf_counter()
        _compute(runner, cache, spans)
        times.append(time.perf_counter() - began_s)
    return min(times[1:])


@torch.inference_mode()
def _compute(runner: Runner, cache: KvCache, spans: list[Span]) -> None:
    whole(runner.layers(pack(spans, cache)))
    cache.synchronize()


def _span(cache: KvCache, start: int, count: int) -> Span:
    length = start + count
    sampling = SamplingParams(temperature=0.0, max_tokens=1)
    blocks = [cache.scratch] * cache.layout.blocks_for(length)
    return Span(Sequence("warm-up", [0] * length, length, sampling, blocks=blocks), start, count)
