"""The share of Python in a step: its time less the time inside torch and C++ operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile

from bench.systems.in_process import EngineBench

_STEPS, _ROUNDS = 32, 5


@dataclass(frozen=True, slots=True)
class PythonShare:
    """Milliseconds of a batch-1 step, of the fastest rounds.

    `operations` is the time inside outermost operations, as torch's profiler measures it. The
    profiler also times their children, so this time is a little too long. `profiled` is the step
    under the profiler, in which Python takes longer. Python's true share is between `low` and
    `high`.
    """

    step: float
    profiled: float
    operations: float

    @property
    def low(self) -> float:
        """Python's share of an undisturbed step."""
        return max(0.0, 1 - self.operations / self.step)

    @property
    def high(self) -> float:
        """Python's share, with what the profiler adds."""
        return max(0.0, 1 - self.operations / self.profiled)


def measure(bench: EngineBench, prompt: int) -> PythonShare:
    """Profile decode steps of one sequence."""
    [sequence] = bench.sequences(1, prompt, (2 * _ROUNDS + 1) * _STEPS + 1, "share")
    bench.prefill(sequence)
    bench.decode([sequence], _STEPS)
    steps, profiles, operations = [], [], []
    # In turn, so that both see the same machine. The fastest round of each counts, because other
    # processes only add time.
    for _ in range(_ROUNDS):
        steps.append(bench.decode([sequence], _STEPS) * 1e3 / _STEPS)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            profiles.append(bench.decode([sequence], _STEPS) * 1e3 / _STEPS)
        operations.append(_outermost_ms(profiler.events()))
    return PythonShare(min(steps), min(profiles), min(operations))


def _outermost_ms(events: Any) -> float:
    """Milliseconds of a step inside outermost operations."""
    outermost = (event.cpu_time_total for event in events if event.cpu_parent is None)
    return float(sum(outermost)) / 1e3 / _STEPS
