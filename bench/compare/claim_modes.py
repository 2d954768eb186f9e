"""Ways of batching under one load each: the latency of whole answers, and tokens per second."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from bench.core.prompts import count_tokens
from bench.load.arrivals import CALM, Lengths, Load, LoadPhase, poisson
from bench.load.closed_loop import ServerTarget
from bench.load.goodput import ALL
from bench.load.http_recording import BadAnswer
from bench.load.run_record import LoadRun, Sender
from bench.systems.contenders import warm_load

# The configuration of each mode; all modes have one pool of one replica.
MODES: Mapping[str, str] = {
    "serial": "decode: {max_batch: 1}\n",
    "window-10": "decode: {batching: window, window_ms: 10}\n",
    "window-50": "decode: {batching: window, window_ms: 50}\n",
    "continuous": "decode: {batching: continuous}\n",
}
STATIC_MODE = "decode: {batching: static}\n"

_SHORTEST, _LONGEST = 16, 128


def mixed_load(seed: int) -> Load:
    """2 requests a second for 30 s, with answers of different lengths."""
    title = f"Poisson at 2/s for 30 s; 64 to 512 tokens, answers of {_SHORTEST} to {_LONGEST}"
    drawn = poisson((LoadPhase(CALM, 30.0, 2.0),), Lengths(64, 512), seed, title)
    chosen = random.Random(f"answers/{seed}")
    arrivals = [
        replace(arrival, new_tokens=chosen.randint(_SHORTEST, _LONGEST))
        for arrival in drawn.arrivals
    ]
    return replace(drawn, arrivals=tuple(arrivals))


def crowd_load(seed: int) -> Load:
    """15 requests a second for 4 s, more than any mode can serve, of 128 + 64 tokens."""
    title = "Poisson at 15/s for 4 s; prompts of 128 tokens, 64 new ones"
    return poisson((LoadPhase(CALM, 4.0, 15.0),), Lengths(128, 128, 64), seed, title)


async def latency_p95(server: ServerTarget, name: str, seed: int) -> float:
    """Seconds from when a request was due to its last token, at p95; raises BadAnswer."""
    run = await _served(server, name, mixed_load(seed))
    p95 = run.figures().phases[ALL].ttlt.p95
    if p95 is None:
        raise BadAnswer("nothing was answered")
    return p95


async def tokens_per_s(server: ServerTarget, name: str, seed: int) -> float:
    """From the first arrival to the last token of a crowd; raises BadAnswer."""
    return (await _served(server, name, crowd_load(seed))).figures().tokens_per_s


async def _served(server: ServerTarget, name: str, load: Load) -> LoadRun:
    """The load after a warm-up. BadAnswer where not all of it was answered in full."""
    sender = Sender(count=count_tokens)
    await sender.send(name, server, warm_load(load.seed), {}, None)
    run = await sender.send(name, server, load, {}, None)
    missing = sum(not outcome.complete for outcome in run.outcomes)
    if missing:
        raise BadAnswer(f"{missing} of {len(run.outcomes)} requests were not answered in full")
    return run
