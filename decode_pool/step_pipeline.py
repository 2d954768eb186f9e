"""The decode steps under way: one, and on a GPU a second that is launched behind it.

A device that launches its work would wait from the end of a step until the host has read the
tokens, scheduled the next step and launched it. So the next step is launched first. Its input
tokens are those that the step before samples, and stay on the device. A request that turns out to
have ended takes part in one step in vain.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from decode_pool.scheduler import DecodeScheduler
from engine.runtime.engine_thread import EngineWorker
from engine.runtime.step_launch import StepLaunch
from engine.types.sequence import Outcome, Span


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """A step under way, begun at `began_s`: launched, or computed at once.

    The first `prompts` spans are of prompts. In such a mixed pass the streams' tokens ride along.
    """

    spans: list[Span]
    began_s: float
    under_way: StepLaunch | Awaitable[list[Outcome]]
    prompts: int = 0

    @property
    def rows(self) -> list[Span]:
        """The spans of streams."""
        return self.spans[self.prompts :] if self.prompts else self.spans


class StepPipeline:
    """Begins the steps of a decode loop, at most one behind the step under way.

    `clock` has the time in seconds.
    """

    def __init__(
        self, scheduler: DecodeScheduler, worker: EngineWorker, clock: Callable[[], float]
    ) -> None:
        self._scheduler = scheduler
        self._worker = worker
        self._clock = clock
        self._ahead: DecodeStep | None = None

    @property
    def is_ahead(self) -> bool:
        """Whether a step is under way whose results nobody awaits yet."""
        return self._ahead is not None

    def next(self, most_tokens: int = 0) -> DecodeStep | None:
        """The step that was launched ahead, or else a new step; None if no request runs.

        A new step takes up to `most_tokens` of prompts along.
        """
        if self._ahead is not None:
            step, self._ahead = self._ahead, None
            return step
        spans = self._scheduler.schedule()
        if not spans:
            return None
        if most_tokens:
            mixed = self._scheduler.schedule_mixed(spans, self._clock(), most_tokens)
            if mixed:
                prompts = len(mixed) - len(spans)
                return DecodeStep(mixed, self._clock(), self._worker.step(mixed), prompts)
        most_rows = self._worker.rows_ahead
        if most_rows and self._scheduler.is_followed(spans, most_rows):
            return self._launched(spans)
        return DecodeStep(spans, self._clock(), self._worker.step(spans))

    def go_ahead(self, step: DecodeStep) -> Awaitable[list[Outcome]]:
        """Launch the step behind this step, where that is possible; returns this step's results."""
        if not isinstance(step.under_way, StepLaunch):
            return step.under_way
        spans = self._scheduler.schedule_ahead(step.spans, self._worker.rows_ahead)
        if spans:
            self._ahead = self._launched(spans)
        return self._worker.results(step.under_way)

    def _launched(self, spans: list[Span]) -> DecodeStep:
        return DecodeStep(spans, self._clock(), self._worker.launch(spans))
