"""A trial of a kernel beside the reference that it may replace, at the start on this device.

A trial promises:

- Right first. A candidate is compared with the reference in every case, before any is measured. The
  norm of the difference, relative to the norm of the reference's answer, is at most the trial's
  tolerance. Further runs have the bits of the first, because a race would change them.
- Then faster. The candidate is taken where it needs at most 97 % of the reference's time: 3 % is
  more than noise. It is taken up to the first case that it does not win.
- No failure ends a start. Whatever a library, a compiler or a launch raises leaves the reference.
- An operator sees one line a trial. INFO has the microseconds of both in each case, and which of
  them is used. WARNING has the reason why a candidate is not right.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.errors import first_line
from engine.model.trials.device_timer import Timer

log = logging.getLogger(__name__)

Tensor = torch.Tensor
Call = Callable[[], Tensor]

_FASTER = 0.97


@dataclass(frozen=True, slots=True)
class TrialCase:
    """One input: both calls compute its answer.

    `spoil` comes before each checked run, and fills what the candidate has to write with NaN.
    """

    name: str
    candidate: Call
    reference: Call
    spoil: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True)
class KernelTrial:
    """What is computed, by which candidate and which reference, how exactly, and in how many runs.

    A tolerance of 0 asks for equal numbers.
    """

    what: str
    candidate: str
    reference: str
    tolerance: float
    runs: int

    def cases_won(self, cases: Sequence[TrialCase], seconds: Timer) -> int:
        """In how many of the first cases the candidate is used; 0 where it is wrong in any."""
        measured: list[str] = []
        won = 0
        try:
            for case in cases:
                self._check(case)
            for case in cases:
                own_s, other_s = seconds(case.candidate), seconds(case.reference)
                measured.append(f"{case.name}: {own_s * 1e6:.1f} of {other_s * 1e6:.1f} us")
                if not own_s <= _FASTER * other_s:
                    break
                won += 1
        except Exception as error:  # of a library, a compiler, a launch, or an answer that differs
            reason = first_line(error)
            log.warning("%s: %s is not used: %s", self.what, self.candidate, reason)
            return 0
        used = self.candidate if won else self.reference
        if won and len(cases) > 1:
            used += f" up to {cases[won - 1].name}"
        log.info("%s: %s (%s)", self.what, used, ", ".join(measured))
        return won

    def _check(self, case: TrialCase) -> None:
        """Raise ArithmeticError where the answer differs, has gaps, or changes between runs."""
        # Clones: a recording writes every answer to the same place.
        expected = case.reference().clone()
        first: Tensor | None = None
        for _ in range(self.runs):
            case.spoil()
            answer = case.candidate()
            if first is None:
                first = answer.clone()
                off = _distance(first, expected)
                if not off <= self.tolerance:
                    raise ArithmeticError(f"its answer for {case.name} differs by {off:.2g}")
            elif not torch.equal(answer, first):
                raise ArithmeticError(f"its answer for {case.name} changes from run to run")


def _distance(answer: Tensor, expected: Tensor) -> float:
    """The norm of the difference relative to the norm of what is expected."""
    if torch.equal(answer, expected):
        return 0.0
    wide = expected.double()
    return float((answer.double() - wide).norm() / wide.norm())
