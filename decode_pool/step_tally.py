"""Counts the steps of a replica, and says what part of them each request had."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from decode_pool import metrics
from engine.types.sequence import Span

if TYPE_CHECKING:
    from decode_pool.job import DecodeJob

_start = attrgetter("start")


@dataclass(frozen=True, slots=True)
class StepCount:
    """Steps, the requests in them, their seconds, and the sum of seconds / requests."""

    steps: int = 0
    requests: int = 0
    seconds: float = 0.0
    share_s: float = 0.0

    @property
    def mean_batch(self) -> float:
        """The mean number of requests in a step; 0 without a step."""
        return self.requests / self.steps if self.steps else 0.0

    def plus(self, more: StepCount) -> StepCount:
        """These steps and `more`."""
        return StepCount(
            self.steps + more.steps,
            self.requests + more.requests,
            self.seconds + more.seconds,
            self.share_s + more.share_s,
        )

    def since(self, before: StepCount) -> StepCount:
        """The steps after `before`."""
        return StepCount(
            self.steps - before.steps,
            self.requests - before.requests,
            self.seconds - before.seconds,
            self.share_s - before.share_s,
        )


class StepTally:
    """Sums over all steps. A request looks at them where it begins and ends to be in each step."""

    def __init__(self) -> None:
        self.count = StepCount()

    def stepped(
        self, spans: Sequence[Span], jobs: Mapping[str, DecodeJob], seconds: float
    ) -> StepCount:
        """Count a step; returns the count before it.

        The request with the most tokens is the step's straggler, because its attention is longest.
        """
        before, requests = self.count, len(spans)
        self.count = StepCount(
            before.steps + 1,
            before.requests + requests,
            before.seconds + seconds,
            before.share_s + seconds / requests,
        )
        if requests > 1:
            longest = jobs.get(max(spans, key=_start).sequence.owner)
            if longest is not None:
                longest.straggler_steps += 1
        return before


def count_recomputed(
    spans: Sequence[Span],
    jobs: Mapping[str, DecodeJob],
    preemptions: Callable[[str], int | None],
) -> None:
    """Count the tokens of a pass that had KV before, by the reason.

    With the reason `handed_over` decode computed again what prefill had handed over. `preemptions`
    is None for a request that has gone.
    """
    for span in spans:
        owner = span.sequence.owner
        job, lost = jobs.get(owner), preemptions(owner)
        if job is None or lost is None or not span.sequence.output_tokens:
            continue
        reason = "preemption" if lost else "failover" if job.failed_over else "handed_over"
        job.recomputed_tokens += span.count
        metrics.RECOMPUTED_TOKENS.inc(span.count, reason=reason)
