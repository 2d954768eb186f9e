"""The arrivals and lengths of requests, all drawn before the first is sent. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.core.prompts import prompt_ids

CALM, BURST, DRAIN = "calm", "burst", "drain"


@dataclass(frozen=True, slots=True)
class LoadPhase:
    """A stretch of `seconds` with Poisson arrivals at `rate` per second; names may recur."""

    name: str
    seconds: float
    rate: float

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.rate < 0:
            raise ValueError("a phase takes time, and its rate is not negative")


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt lengths, uniform from `least` to `most` tokens, and `new` tokens of an answer."""

    least: int = 64
    most: int = 1024
    new: int = 32

    def __post_init__(self) -> None:
        if not (1 <= self.least <= self.most and self.new >= 1):
            raise ValueError("lengths are at least 1, and the most is not below the least")


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: its seconds from the start, its phase, and tokens of prompt and answer.

    `blocks` names the prefix blocks of its prompt, if the trace has them.
    """

    at_s: float
    phase: str
    prompt_tokens: int
    new_tokens: int
    blocks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """Arrivals in order, and a title that describes them.

    `spans` are the phases with their begin and end (seconds); equal names of blocks stand for
    equal prefixes of `block_tokens` each.
    """

    title: str
    seed: int
    arrivals: tuple[Arrival, ...]
    spans: tuple[tuple[str, float, float], ...]
    block_tokens: int = 0

    @property
    def seconds(self) -> float:
        """The end of the last phase, in seconds."""
        return self.spans[-1][2]

    def span(self, phase: str) -> tuple[float, float] | None:
        """Begin and end of the first phase of that name, or None."""
        found = (span for span in self.spans if span[0] == phase)
        return next(((begin, end) for _, begin, end in found), None)

    def prompt(self, index: int, vocabulary: int) -> list[int]:
        """Token ids of a request's prompt: first those of its blocks, then unique ones."""
        arrival = self.arrivals[index]
        ids: list[int] = []
        for block in arrival.blocks:
            ids += prompt_ids(self.block_tokens, vocabulary, f"{self.seed}/block {block}")
        missing = arrival.prompt_tokens - len(ids)
        if missing > 0:
            ids += prompt_ids(missing, vocabulary, f"{self.seed}/{index}")
        return ids[: arrival.prompt_tokens]


def poisson(phases: Sequence[LoadPhase], lengths: Lengths, seed: int, title: str) -> Load:
    """Draw a load; equal seeds give equal loads."""
    chosen = random.Random(seed)
    arrivals: list[Arrival] = []
    spans = []
    begin = 0.0
    for phase in phases:
        for at_s in _moments(chosen, phase, begin):
            prompt = chosen.randint(lengths.least, lengths.most)
            arrivals.append(Arrival(at_s, phase.name, prompt, lengths.new))
        spans.append((phase.name, begin, begin + phase.seconds))
        begin += phase.seconds
    return Load(title, seed, tuple(arrivals), tuple(spans))


def burst_phases(
    rate: float, factor: float, *, before_s: float, burst_s: float, drain_s: float, after_s: float
) -> tuple[LoadPhase, ...]:
    """Calm, `factor` times the rate for a while, and calm again.

    Requests that arrive in the first `drain_s` after the burst are a phase of their own, because
    requests of the burst still wait.
    """
    phases = (
        LoadPhase(CALM, before_s, rate),
        LoadPhase(BURST, burst_s, rate * factor),
        LoadPhase(DRAIN, drain_s, rate),
    )
    return (*phases, LoadPhase(CALM, after_s, rate)) if after_s > 0 else phases


def _moments(chosen: random.Random, phase: LoadPhase, begin: float) -> Iterator[float]:
    """Poisson arrivals: exponential times between them."""
    if phase.rate == 0:
        return
    at_s = chosen.expovariate(phase.rate)
    while at_s < phase.seconds:
        yield begin + at_s
        at_s += chosen.expovariate(phase.rate)
