"""Whether kernels are launched while the ones before them end: where that is right and faster."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from engine.kernels.dependent_launch import DependentLaunch
from engine.model.trials.device_timer import Timer
from engine.model.trials.kernel_trial import Call, KernelTrial, TrialCase

# A kernel that did not wait for the one before it would change the answer of a run.
_TRIAL = KernelTrial("a chain of kernels", "dependent launch", "plain launch", 0.0, runs=10)


def choose_dependent(
    dependent: DependentLaunch, chain: Call, record: Callable[[Call], Call], seconds: Timer
) -> None:
    """Record a chain of kernels both ways; turn dependent launch on if it wins with equal bits."""

    @cache
    def recorded(on: bool) -> Call:
        dependent.on = on
        try:
            return record(chain)
        finally:
            dependent.on = False

    # Recorded inside the trial, where a failure leaves plain launch.
    case = TrialCase("a step", lambda: recorded(True)(), lambda: recorded(False)())
    dependent.on = _TRIAL.cases_won([case], seconds) == 1
