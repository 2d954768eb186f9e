"""The time that steps take, told to all that learn from it."""

from __future__ import annotations

import time

from decode_pool import metrics
from decode_pool.batch_size import BatchSize
from decode_pool.itl_budget import ItlBudget
from decode_pool.recompute_share import RecomputeShare
from decode_pool.shared_cores import StepInterval
from engine.types.urgency import Urgency


class StepClock:
    """The times of the steps of one loop, in seconds (monotonic).

    `step_s` is how long the last step took, 0 where none was before. `interval` is there on shared
    cores alone.
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
        self.step_s = 0.0

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

    def stepped(self, launched_s: float, requests: int, *, disturbed: bool) -> None:
        """Note the end of a step. One that was launched ahead began with the end of the last."""
        now, before_s = time.monotonic(), self._ended_s
        self.step_s = now - max(launched_s, before_s or launched_s)
        self._ended_s = now
        undisturbed_s = None
        if self._interval is not None:
            undisturbed_s = self._interval.stepped(self.step_s, disturbed=disturbed)
        self._itl.stepped(self.step_s, undisturbed_s)
        self._recompute.stepped(self.step_s)
        self._batch.stepped(requests, self.step_s)
        metrics.STEP_TIME.observe(self.step_s)
        metrics.BATCH.observe(requests)
        if before_s is not None:
            metrics.INTER_TOKEN_LATENCY.observe(now - before_s)
