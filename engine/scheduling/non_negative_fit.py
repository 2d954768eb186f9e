"""A least squares fit that forgets, with factors that are never negative. Pure.

Coordinate descent with a bound at zero solves it (Franc, Hlaváč and Navara, 2005). So a prediction
can only rise with its features. Three rules keep it steady:

- An observation weighs less the longer it took. One that is far off counts as a few times what was
  expected.
- Several observations in a row that are far below what was expected are believed at once: the
  engine became faster, or another process left its cores. The way back is believed as fast.
- Before there are observations an optimistic guess holds. A router that guesses too much would
  refuse the work that it could learn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from statistics import median

# Tuned: an observation counts as at most so many times what was expected, or such a part of it.
_FARTHEST = 3.0
# Tuned: after so many far-off observations in a row all costs change at once.
_BELIEVED_AFTER = 8
# Bound: the smallest part of all costs that such a change may leave.
_LEAST_PART = 1e-3
# Numerics: passes of coordinate descent for each observation.
_SWEEPS = 12
# Numerics: the weight of the guess, against that of one observation of typical features.
_GUESS_WEIGHT = 0.02
# Tuned: predictions rest on observations from so many on.
TRUSTED_AFTER = 4
# Tuned: the part of an observation's weight that is left with each one that follows.
MEMORY = 0.97


class NonNegativeFit:
    """seconds = factors · features, with factors of 0 and up; old observations fade.

    `guess` are the factors before observations, `typical` usual features, and `memory` is the part
    of a weight that is left with each further observation.
    """

    def __init__(
        self, guess: Sequence[float], typical: Sequence[float], memory: float = MEMORY
    ) -> None:
        self._memory = memory
        self._guess = list(guess)
        self.factors = list(guess)
        self._seen = 0
        self._far_off: list[float] = []  # in a row to one side, as parts of what was expected
        self._became = 1.0  # the part that is left of all costs since they were last believed lower
        self._typical_s = sum(map(mul, guess, typical))
        self._anchors = [_GUESS_WEIGHT * value * value / self._typical_s for value in typical]
        self._moments = [[0.0] * len(guess) for _ in guess]
        self._targets = [0.0] * len(guess)

    @property
    def learned(self) -> bool:
        """Whether predictions rest on observations rather than on the guess."""
        return self._seen >= TRUSTED_AFTER

    def start_from(self, guess: Sequence[float]) -> None:
        """Take another guess for the first features, as long as predictions rest on the guess."""
        if self.learned:
            return
        self._guess = [*guess, *self._guess[len(guess) :]]
        if self._seen:
            self._solve()
        else:
            self.factors = list(self._guess)

    def add_features(self, typical: Sequence[float]) -> None:
        """Append features that were 0 in all observations so far; their guess is 0."""
        zeros = [0.0] * len(typical)
        self._guess += zeros
        self.factors += zeros
        self._targets += zeros
        self._anchors += [_GUESS_WEIGHT * value * value / self._typical_s for value in typical]
        for row in self._moments:
            row += zeros
        self._moments += [[0.0] * len(self._guess) for _ in typical]

    def predict(self, features: Sequence[float]) -> float:
        """Seconds for these features; the last may be left out, and are 0 then."""
        seconds: float = sum(map(mul, self.factors, features))
        return seconds

    def observe(self, features: Sequence[float], seconds: float) -> None:
        """Learn how long these features took; the last may be left out, and are 0 then."""
        features = [*features, *[0.0] * (len(self.factors) - len(features))]
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
        """The factor on all costs, after an observation that took `part` of the expected time.

        Costs never rise by it beyond what was known before they fell.
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
        factors = self.factors
        for _ in range(_SWEEPS):
            for row, anchor in enumerate(self._anchors):
                moments = self._moments[row]
                others = sum(map(mul, moments, factors)) - moments[row] * factors[row]
                wanted = self._targets[row] + anchor * self._guess[row] - others
                factors[row] = max(0.0, wanted / (moments[row] + anchor))
