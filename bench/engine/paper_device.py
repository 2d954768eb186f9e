"""A device on paper: it computes nothing, but its steps take their time, one after the other."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from engine.kv.cache import KvCache
from engine.model.cuda_graphs import StaticBatch
from engine.runtime.engine_thread import Slices
from engine.types.sequence import Outcome, SampledToken, Span
from engine.types.urgency import Urgency


class StageClock:
    """The seconds of each stage of the host's work, each time."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time inside for that stage."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name].append(time.perf_counter() - began_s)

    def per_step(self, name: str, steps: int) -> float:
        """The seconds of a stage for one of so many steps: its median, as often as it came.

        A mean would have the pauses that other programs make.
        """
        taken = self._seconds[name]
        return median(taken) * len(taken) / steps if taken else 0.0


class PaperStep:
    """A step that was launched and ends at `ends_s` (as of `time.perf_counter`)."""

    def __init__(self, ends_s: float, tokens: list[int]) -> None:
        self._ends_s = ends_s
        self._tokens = tokens

    def read(self) -> list[Outcome]:
        """Wait for the end of the step; its results."""
        time.sleep(max(0.0, self._ends_s - time.perf_counter()))
        return [SampledToken(token) for token in self._tokens]


class PaperDevice:
    """An engine whose steps take `step_s`; `idle_s` has the pauses between them.

    Each stream gets `tokens` over and over, beginning with another one. A step is launched into the
    buffers of a recording. It begins when the step before has ended. With `rows_ahead` the next
    step may be launched meanwhile.
    """

    shared_cores = ""
    urgency = Urgency.NONE

    def __init__(
        self,
        cache: KvCache,
        rows: int,
        width: int,
        step_s: float,
        tokens: list[int],
        clock: StageClock,
    ) -> None:
        self.rows_ahead = rows
        self.idle_s: list[float] = []
        self._batch = StaticBatch(cache, rows, width)
        self._step_s = step_s
        self._tokens = tokens
        self._steps = 0
        self._clock = clock
        self._free_s: float | None = None

    def launch(self, spans: list[Span]) -> PaperStep:
        """See Engine."""
        with self._clock.stage("fill"):
            self._batch.fill(spans)
        now = time.perf_counter()
        if self._free_s is not None:
            self.idle_s.append(max(0.0, now - self._free_s))
        self._free_s = max(now, self._free_s or now) + self._step_s
        self._steps += 1
        rows = range(self._steps, self._steps + len(spans))
        return PaperStep(self._free_s, [self._tokens[row % len(self._tokens)] for row in rows])

    def forward(self, spans: list[Span]) -> list[Outcome]:
        """See Engine."""
        return self.launch(spans).read()

    def begin(self, spans: list[Span], stored: Callable[[], None] | None = None) -> Slices:
        """No prompts are computed here."""
        raise NotImplementedError

    def prepare_improvement(self) -> bool:
        """Nothing to improve."""
        return False

    def improve(self) -> bool:
        """Nothing to improve."""
        return False

    def clear(self, blocks: list[int]) -> None:
        """Nothing to clear."""

    def yield_cores(self) -> None:
        """No cores are used."""
