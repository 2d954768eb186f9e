"""The time that steps take, told to all that learn from it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from decode_pool import metrics
from decode_pool.batch_size import BatchSize
from decode_pool.itl_budget import ItlBudget
from decode_pool.recompute_share import RecomputeShare
from decode_pool.shared_cores import StepInterval
from decode_pool.step_pipeline import DecodeStep
from decode_pool.step_tally import StepCount, StepTally
from engine.types.urgency import Urgency

if TYPE_CHECKING:
    from decode_pool.job import DecodeJob


class StepClock:
    """The times of the steps of one loop, in seconds (monotonic).

    `step_s` is how long the last step took, 0 where none was before. `prompts_s` is what the
    prompts had of the last mixed pass. `tally` counts the steps. `interval` is there on
    shared cores alone.
    """

    def __init__(
        self,
        itl: ItlBudget,
        recompute: RecomputeShare,
        batch: BatchSize,
        interval: StepInterval | None,
    ) -> None:
        self._itl = itl
        self._recompute = recompute
        self._batch = batch
        self._interval = interval
        self._ended_s: float | None = None
        self.step_s = self.prompts_s = 0.0
        self.tally = StepTally()

    def wait_s(self, urgency: Urgency) -> float | None:
        """The time that the next step waits for other engines on shared cores; None: no wait."""
        if self._interval is None or self._ended_s is None:
            return None
        since_s = time.monotonic() - (self._ended_s - self.step_s)
        return self._interval.wait_s(since_s, urgency) or None

    def idle(self) -> None:
        """Note that no request runs."""
        self.step_s, self._ended_s = 0.0, None
        self._itl.idle()

    def ended(
        self, step: DecodeStep, jobs: Mapping[str, DecodeJob], *, disturbed: bool
    ) -> StepCount:
        """Note the end of a step; returns the count of the steps before it.

        A mixed pass counts as a usual step, because the rest of its time is the prompts'.
        """
        before_s, self._ended_s = self._ended_s, time.monotonic()
        requests = len(step.rows)
        metrics.BATCH.observe(requests)
        if before_s is not None:
            metrics.INTER_TOKEN_LATENCY.observe(self._ended_s - before_s)
        # A step that was launched ahead began with the end of the last.
        took_s = self._ended_s - max(step.began_s, before_s or step.began_s)
        if step.prompts:
            rows_s = min(self._itl.step_s or took_s, took_s)
            self.prompts_s = took_s - rows_s
            return self.tally.stepped(step.rows, jobs, rows_s)
        self._stepped(took_s, requests, disturbed=disturbed)
        return self.tally.stepped(step.rows, jobs, took_s)

    def _stepped(self, step_s: float, requests: int, *, disturbed: bool) -> None:
        self.step_s = step_s
        undisturbed_s = None
        if self._interval is not None:
            undisturbed_s = self._interval.stepped(step_s, disturbed=disturbed)
        self._itl.stepped(step_s, undisturbed_s)
        self._recompute.stepped(step_s)
        self._batch.stepped(requests, step_s)
        metrics.STEP_TIME.observe(step_s)
