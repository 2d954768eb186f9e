"""How much of a step is Python: its time less the time inside torch and C++ operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile

from bench.systems.in_process import EngineBench

_STEPS, _ROUNDS = 32, 5


@dataclass(frozen=True, slots=True)
class PythonShare:
    """Milliseconds of a batch-1 step, of the fastest rounds.

    `operations` is the time inside outermost operations, as torch's profiler saw it; the profiler
    also times their children, so this is a little too long and `python` a little too short.
    `profiled` is the step while it watched: against it, Python is too long. The truth is between.
    """

    step: float
    profiled: float
    operations: float
    by_operation: dict[str, float]

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
    # In turn, so that both meet the same machine; the fastest round of each counts, as whatever
    # else runs there only adds.
    for _ in range(_ROUNDS):
        steps.append(bench.decode([sequence], _STEPS) * 1e3 / _STEPS)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            profiles.append(bench.decode([sequence], _STEPS) * 1e3 / _STEPS)
        operations.append(_by_name(profiler.events()))
    fastest = min(operations, key=lambda found: sum(found.values()))
    return PythonShare(min(steps), min(profiles), sum(fastest.values()), fastest)


def _by_name(events: Any) -> dict[str, float]:
    """Milliseconds a step of the outermost operations, the longest first."""
    totals: dict[str, float] = {}
    for event in events:
        if event.cpu_parent is None:
            totals[event.name] = totals.get(event.name, 0.0) + event.cpu_time_total / 1e3 / _STEPS
    return dict(sorted(totals.items(), key=lambda item: -item[1]))
