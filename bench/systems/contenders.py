"""The systems that are measured under a burst, and the loads that they get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from bench.load.arrivals import CALM, Arrival, Lengths, Load, burst_phases, poisson
from bench.load.goodput import Budgets
from bench.load.traces import FITTED, load_trace
from bench.systems import services
from bench.systems.services import VLLM_SMALL_STEPS, CliPaths, Service

POOLS, SINGLE = "pools", "single"
VLLM, VLLM_SMALL, VLLM_FLOAT = "vllm", "vllm-256", "vllm-float32"
BURST_LOAD, RETRY_LOAD = "burst", "burst-retry"
RUNNING, LONG = "running", "long"

Start = Callable[[CliPaths, str], Service]


@dataclass(frozen=True, slots=True)
class Contender:
    """A line of the tables. `start` takes YAML that joins Tandem's configuration."""

    title: str
    start: Start


CONTENDERS: Mapping[str, Contender] = {
    VLLM: Contender(
        "vLLM 0.32 (CPU build, patched install)", lambda paths, _: services.vllm(paths)
    ),
    VLLM_SMALL: Contender(
        "the same, steps of 256 tokens",
        lambda paths, _: services.vllm(paths, *VLLM_SMALL_STEPS),
    ),
    # On an AMD Zen 3, without AVX512-BF16, prompts take its bfloat16 four times as long.
    VLLM_FLOAT: Contender(
        "vLLM 0.32 (CPU build, patched install), float32",
        lambda paths, _: services.vllm(paths, dtype="float32"),
    ),
    SINGLE: Contender(
        "Tandem, one pool of one replica",
        lambda paths, more: services.tandem(paths, prefill=0, decode=1, more=more),
    ),
    POOLS: Contender(
        "Tandem, 1 + 1 replicas",
        lambda paths, more: services.tandem(paths, prefill=1, decode=1, more=more),
    ),
}
PEERS = (VLLM, VLLM_SMALL, VLLM_FLOAT)
# A budget that refuses no prompt, because a refused prompt would delay no stream.
TANDEM_CONFIG_EACH_TOKEN = "endpoints: {chat: {ttft_budget_ms: 600000, stream: tokens}}\n"


@dataclass(frozen=True, slots=True)
class BurstShape:
    """The burst: requests per second, the factor in the burst, and the seconds of each phase.

    For a machine that is some times slower, lengths are divided by `shrink`, or all times are
    `slow` times as long: phases, those between arrivals, and budgets.
    """

    rate: float = 1.1
    factor: float = 10.0
    before_s: float = 50.0
    burst_s: float = 5.0
    drain_s: float = 13.0
    shrink: float = 1.0
    slow: float = 1.0

    def __post_init__(self) -> None:
        if min(self.shrink, self.slow) < 1:
            raise ValueError("lengths are divided, and times multiplied, by 1 or more")

    @property
    def budgets(self) -> Budgets:
        """The latency goals of a request."""
        return Budgets().slower(self.slow)

    @property
    def tandem_config(self) -> str:
        """The budgets as Tandem's configuration, in YAML."""
        ttft_ms, itl_ms = 1000 * self.budgets.ttft_s, 1000 * self.budgets.itl_s
        chat = {"ttft_budget_ms": ttft_ms, "itl_budget_ms": itl_ms}
        decode = {"itl_budget_ms": itl_ms}
        return yaml.safe_dump({"endpoints": {"chat": chat}, "decode": decode})

    def short(self) -> BurstShape:
        """The shape with shorter phases."""
        return replace(self, before_s=12.0, burst_s=3.0, drain_s=7.0)


def burst_load(shape: BurstShape, seed: int) -> Load:
    """Prompts of 64 to 1,024 tokens, 32 new ones, or a part of that; Poisson in three phases."""
    phases = burst_phases(
        shape.rate / shape.slow,
        shape.factor,
        before_s=shape.before_s * shape.slow,
        burst_s=shape.burst_s * shape.slow,
        drain_s=shape.drain_s * shape.slow,
        after_s=0.0,
    )
    lengths = Lengths()
    title = (
        f"Poisson at {shape.rate:g}/s for {shape.before_s:g} s, {shape.factor:g} times that for"
        f" {shape.burst_s:g} s, {shape.rate:g}/s again for {shape.drain_s:g} s; prompts of"
        f" {lengths.least} to {lengths.most} tokens, {lengths.new} new ones"
    )
    if shape.slow > 1:
        title += f", all times and budgets {shape.slow:g} times as long"
    return _shrunk(poisson(phases, lengths, seed, title), shape.shrink)


def _shrunk(load: Load, by: float) -> Load:
    """The arrivals of a load with shorter prompts and answers."""
    if by == 1:
        return load

    def part(tokens: int) -> int:
        return max(1, round(tokens / by))

    arrivals = tuple(
        replace(one, prompt_tokens=part(one.prompt_tokens), new_tokens=part(one.new_tokens))
        for one in load.arrivals
    )
    return replace(load, title=f"{load.title}, lengths divided by {by:g}", arrivals=arrivals)


def any_load(name: str, shape: BurstShape, seed: int, traces: Path) -> Load:
    """The load of that name; raises OSError or ValueError where a trace cannot be read.

    A trace that is not thinned by the seed gives each seed a stretch of its own, one after another.
    """
    if name in FITTED:
        scale = FITTED[name].smaller(shape.shrink).slower(shape.slow)
        if scale.share == 1:
            later_s = (seed - 1) * scale.seconds * scale.speed
            scale = replace(scale, start_s=scale.start_s + later_s)
        return load_trace(traces / f"{name}.csv.gz", scale, seed)
    return burst_load(shape, seed)


def itl_load(seed: int) -> Load:
    """Four streams that run, and after 3 s four prompts of 1,024 tokens at once."""
    running = tuple(Arrival(0.0, RUNNING, 128, 500) for _ in range(4))
    long = tuple(Arrival(3.0, LONG, 1024, 8) for _ in range(4))
    title = "four running streams; after 3 s four prompts of 1,024 tokens at once"
    return Load(title, seed, (*running, *long), ((RUNNING, 0.0, 3.0), (LONG, 3.0, 6.0)))


def warm_load(seed: int) -> Load:
    """A load to warm a system up: some requests of each length, alone and together."""
    times_and_lengths = [(0.0, 64), (0.4, 1024), (1.4, 300), (2.0, 64), (2.0, 512), (2.0, 1024)]
    times_and_lengths += [(2.1, 200 + 100 * position) for position in range(5)]
    arrivals = tuple(Arrival(at_s, CALM, tokens, 32) for at_s, tokens in times_and_lengths)
    return Load("warm-up", -1 - seed, arrivals, ((CALM, 0.0, 3.0),))
