"""A burst on a machine that is not as predicted, whose refused requests come back when told to.

What a prompt takes is off by a share of its own, the machine's speed drifts by as much, and prompts
are computed more slowly beside streams, as on two cores that two pools share.
"""

from __future__ import annotations

import random
from bisect import bisect
from dataclasses import dataclass, field

from tests.cluster.admission.burst import TICK_S, Burst, Call

# Of the speed of a prompt that is alone on the machine, measured; and what each takes beside its
# tokens, in tokens.
_BESIDE_STREAMS = 0.67
_EACH = 40
_DRIFTS_FOR_S = (0.1, 0.8)
_PHASES = (0.0, 25.0), (25.0, 30.0), (30.0, 60.0)


@dataclass(frozen=True)
class Told:
    """A first refusal: `named_s` is the time that it named at `at_s`."""

    call: Call
    at_s: float
    named_s: float
    decided_s: float


@dataclass
class Returning(Burst):
    """The share `faithful` of the refused requests returns, once, at its time."""

    prefill_rate: float = 1850.0
    noise: float = 0.2
    faithful: float = 1.0
    told: list[Told] = field(default_factory=list)
    again: list[Call] = field(default_factory=list)
    _busy: list[float] = field(default_factory=list)
    _factors: dict[int, float] = field(default_factory=dict)
    _drift: float = 1.0
    _drifts_at_s: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.dice = random.Random(1000 + self.seed)

    def busy_s(self, begin_s: float, end_s: float) -> float:
        """For how much of that time there were prompts to compute."""
        return TICK_S * (bisect(self._busy, end_s) - bisect(self._busy, begin_s))

    def _arrivals(self) -> list[Call]:
        calls: list[Call] = []
        for phase, (begin_s, end_s) in enumerate(_PHASES):
            rate = self.burst_rate if phase == 1 else self.calm_rate
            at_s = begin_s + self.chance.expovariate(rate)
            while at_s < end_s:
                calls.append(Call(len(calls), at_s, self.chance.randint(64, 1024), at_s))
                at_s += self.chance.expovariate(rate)
        return calls

    def decide(self, call: Call, ahead_s: float) -> float:
        before = call.refused
        left_s = super().decide(call, ahead_s)
        if call.refused == 1 and not before:
            named_s = self.named_s[-1]
            self.told.append(Told(call, self.now, named_s, self.now - call.arrival_s))
            if self.dice.random() < self.faithful:
                call.arrival_s = self.now + named_s
                self.again.append(call)
                self.arrivals.append(call)
                self.arrivals.sort(key=lambda one: one.arrival_s)
        return left_s

    def _prefill(self) -> None:
        if self.now >= self._drifts_at_s:
            self._drift = self._off()
            self._drifts_at_s = self.now + self.dice.uniform(*_DRIFTS_FOR_S)
        if self.prompts:
            self._busy.append(self.now)
        left_s = TICK_S * self._drift * (_BESIDE_STREAMS if self.streams else 1.0)
        while self.prompts and left_s > 0:
            call = self._next_prompt()
            call.began_s = self.now if call.began_s is None else call.began_s
            rate = self.prefill_rate / self._factor(call)
            took_s = min(left_s, call.remaining / rate)
            call.remaining -= took_s * rate
            left_s -= took_s
            if call.remaining <= 1e-6:
                self._first(call)

    def _factor(self, call: Call) -> float:
        """How much longer it takes than its tokens alone would on average."""
        if call.number not in self._factors:
            self._factors[call.number] = self._off() * (1 + _EACH / call.prompt)
        return self._factors[call.number]

    def _off(self) -> float:
        return self.dice.uniform(1 - self.noise, 1 + self.noise)
