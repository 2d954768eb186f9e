"""What a replica's work costs in seconds, learned from what it has done. Pure.

Costs are sums of features with factors that are never negative, so a prediction can only rise with
what it is asked about. The factors come from a least squares fit that forgets, by coordinate
descent with a bound at zero (Franc, Hlaváč and Navara, 2005); an observation weighs less the
longer it took, one that is far off counts as a few times what was expected, and before there are
any an optimistic guess holds: who guesses too much would refuse what it could learn from. For the
same reason several in a row that are far below what was expected are believed at once: the engine
has been made faster, or somebody else has left its cores; and as many that are as slow as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import mul
from statistics import median

from engine.types.urgency import Urgency

_FARTHEST = 3.0
_BELIEVED_AFTER = 8
_LEAST_PART = 1e-3
_SWEEPS = 12
_GUESS_WEIGHT = 0.02
_TRUSTED_AFTER = 4
# What is left of an observation's weight with each that follows.
_MEMORY = 0.97
# Clocks and messages: a prompt that began so long before another ended still came after it.
_AFTER_S = 0.01
# That many prompts which were computed in turns are one observation at most.
_TOGETHER = 8

# Per request, per token, per token and token before it, and more per token at each urgency but the
# first; and a prompt that they were guessed for.
_PREFILL_GUESS = (0.004, 0.0002, 0.0, 0.0, 0.0, 0.0)
_PREFILL_TYPICAL = (1.0, 256.0, 256.0 * 512.0, 128.0, 128.0, 128.0)
# Per step, per sequence in it.
_STEP_GUESS = (0.002, 0.0002)
_STEP_TYPICAL = (1.0, 8.0)
_FLUSH_GUESS_S = 0.004
_SMOOTHING = 0.1


_SLOWER = (Urgency.PROMPTS, Urgency.PRESSED, Urgency.URGENT)


class NonNegativeFit:
    """seconds = factors · features, with factors of 0 and up; old observations fade."""

    def __init__(
        self, guess: Sequence[float], typical: Sequence[float], memory: float = _MEMORY
    ) -> None:
        self._memory = memory
        self._guess = tuple(guess)
        self.factors = list(guess)
        self._seen = 0
        self._far_off: list[float] = []  # in a row to one side, parts of what was expected
        self._became = 1.0  # what is left of all costs since they were believed to be smaller
        seconds = sum(factor * value for factor, value in zip(guess, typical, strict=True))
        self._anchors = [_GUESS_WEIGHT * value * value / seconds for value in typical]
        self._moments = [[0.0] * len(guess) for _ in guess]
        self._targets = [0.0] * len(guess)

    @property
    def learned(self) -> bool:
        """Whether predictions rest on observations rather than on the guess."""
        return self._seen >= _TRUSTED_AFTER

    def predict(self, features: Sequence[float]) -> float:
        """Seconds for these features; the last may be left out, and are 0 then."""
        seconds: float = sum(map(mul, self.factors, features))
        return seconds

    def observe(self, features: Sequence[float], seconds: float) -> None:
        """Something with these features took so long."""
        expected = max(self.predict(features), 1e-6)
        if self.learned:
            expected = max(expected * self._believed(seconds / expected), 1e-6)
            seconds = min(max(seconds, expected / _FARTHEST), expected * _FARTHEST)
        self._seen += 1
        weight = 1 / max(seconds, expected)
        for row, value in enumerate(features):
            self._targets[row] = self._memory * self._targets[row] + weight * value * seconds
            for column, other in enumerate(features):
                kept = self._memory * self._moments[row][column]
                self._moments[row][column] = kept + weight * value * other
        self._solve()

    def _believed(self, part: float) -> float:
        """What all costs are multiplied by, behind one that took that part of what was expected.

        Never to more than was known before all became faster.
        """
        faster, slower = part * _FARTHEST < 1, part > _FARTHEST and self._became < 1
        if not (faster or slower):
            self._far_off.clear()
            return 1.0
        if self._far_off and (self._far_off[-1] < 1) is slower:
            self._far_off.clear()
        self._far_off.append(part)
        if len(self._far_off) < _BELIEVED_AFTER:
            return 1.0
        by = min(max(median(self._far_off), _LEAST_PART), 1 / self._became)
        self._far_off.clear()
        self._became *= by
        self._targets = [by * target for target in self._targets]
        self._solve()
        return by

    def _solve(self) -> None:
        for _ in range(_SWEEPS):
            for row, anchor in enumerate(self._anchors):
                moments = self._moments[row]
                others = sum(
                    moments[column] * factor
                    for column, factor in enumerate(self.factors)
                    if column != row
                )
                wanted = self._targets[row] + anchor * self._guess[row] - others
                self.factors[row] = max(0.0, wanted / (moments[row] + anchor))


class PrefillCost:
    """Seconds that a replica takes to compute a prompt when it has nothing else to prefill."""

    def __init__(self) -> None:
        self._fit = NonNegativeFit(_PREFILL_GUESS, _PREFILL_TYPICAL)
        self.ended_s = float("-inf")
        self._seen = dict.fromkeys(_SLOWER, 0.0)
        self._last: tuple[tuple[float, ...], float] | None = None

    @property
    def learned(self) -> bool:
        """Whether finished prompts have said what they cost."""
        return self._fit.learned

    def seconds(self, tokens: float, cached: float = 0.0, urgency: Urgency = Urgency.NONE) -> float:
        """For `tokens` to be computed behind `cached` ones at that urgency; 0 for none.

        In more urgency it never takes longer, though what was seen of it was in worse hours.
        """
        if tokens <= 0:
            return 0.0
        alone_s = self._fit.predict((1.0, tokens, _pairs(tokens, cached)))
        if urgency is Urgency.NONE:
            return alone_s
        beside, *slower = self._fit.factors[-len(_SLOWER) :]
        found_s = alone_s + beside * tokens
        for one, factor in zip(_SLOWER[1:urgency], slower, strict=False):
            if self._seen[one] < _TRUSTED_AFTER:
                # Not known yet: streams take half of what they take at the urgency before.
                found_s = (alone_s + found_s) / 2
            else:
                found_s = min(found_s, alone_s + factor * tokens)
        return found_s

    def learn(
        self,
        tokens: int,
        cached: int,
        prefill_s: float,
        ended_s: float,
        busy_s: float = float("inf"),
        urgency: Urgency = Urgency.NONE,
    ) -> None:
        """A prompt's first token came at `ended_s`, that long after its first chunk began.

        What a prompt is charged is the time since the one before it ended, as far as the replica
        had prompts then, since `busy_s` at least; together they are charged the time that passed.
        Of prompts that share steps or pass each other none is known apart: what such a one is
        charged is added to what the one before it was.
        """
        first_s = ended_s - prefill_s
        charged_s = max(0.0, ended_s - max(min(busy_s, first_s), self.ended_s))
        features = _prefill_features(tokens, cached, urgency)
        if self._last is not None:
            before, before_s = self._last
            if first_s < self.ended_s - _AFTER_S and before[0] < _TOGETHER:
                features = tuple(a + b for a, b in zip(before, features, strict=True))
                charged_s += before_s
            else:
                self._fit.observe(before, before_s)
                # Forgotten as the fit forgets: it would end where the other factors are.
                for one, slower in zip(_SLOWER, before[-len(_SLOWER) :], strict=True):
                    self._seen[one] = _MEMORY * self._seen[one] + (slower > 0)
        self._last = features, charged_s
        self.ended_s = max(self.ended_s, ended_s)


def _prefill_features(tokens: float, cached: float, urgency: Urgency) -> tuple[float, ...]:
    slower = (tokens * (urgency is one) for one in _SLOWER)
    return 1.0, tokens, _pairs(tokens, cached), *slower


def _pairs(tokens: float, cached: float) -> float:
    """Pairs of a token to be computed and one before it, which attention sees."""
    return tokens * (cached + tokens / 2)


class CostModel:
    """The costs of each replica, by its id, and of the way back to the client."""

    def __init__(self) -> None:
        self.flush_s = _FLUSH_GUESS_S
        self._prefill: dict[str, PrefillCost] = {}
        self._steps: dict[str, NonNegativeFit] = {}
        self._streams_s: dict[str, float] = {}

    def prefill(self, replica: str) -> PrefillCost:
        """Of a prompt on that replica, beside whatever else it does."""
        if replica not in self._prefill:
            self._prefill[replica] = PrefillCost()
        return self._prefill[replica]

    def step_s(self, replica: str, batch: int) -> float:
        """Predicted seconds of a decode step with so many sequences."""
        return self._step(replica).predict((1.0, float(batch)))

    def learn_step(self, replica: str, batch: int, step_s: float) -> None:
        """A step with that many sequences took so long."""
        if batch > 0 and step_s > 0:
            self._step(replica).observe((1.0, float(batch)), step_s)

    def stream_s(self, replica: str) -> float | None:
        """How long a request stays on that decode replica, on average; None: not known yet."""
        return self._streams_s.get(replica)

    def knows(self, prefill: str, decode: str) -> bool:
        """Whether prompts and streams of these two replicas have said what they take."""
        return decode in self._streams_s and self.prefill(prefill).learned

    def learn_stream(self, replica: str, seconds: float) -> None:
        """A request was on that decode replica for so long."""
        known = self._streams_s.get(replica, seconds)
        self._streams_s[replica] = known + _SMOOTHING * (seconds - known)

    def learn_flush(self, seconds: float) -> None:
        """So long after it was sampled a first token was on its way to the client."""
        within = min(max(seconds, 0.0), 4 * self.flush_s + 0.01)
        self.flush_s += _SMOOTHING * (within - self.flush_s)

    def forget(self, living: Iterable[str]) -> None:
        """Drop replicas that are gone."""
        living = set(living)
        self._prefill = {name: cost for name, cost in self._prefill.items() if name in living}
        self._steps = {name: fit for name, fit in self._steps.items() if name in living}
        self._streams_s = {name: s for name, s in self._streams_s.items() if name in living}

    def _step(self, replica: str) -> NonNegativeFit:
        if replica not in self._steps:
            self._steps[replica] = NonNegativeFit(_STEP_GUESS, _STEP_TYPICAL, memory=0.99)
        return self._steps[replica]
